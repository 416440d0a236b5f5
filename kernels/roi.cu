// MaxRoiPool and RoiAlign: one thread per output element (region, channel, bin).
//
// Coordinates are computed with one rounding per operation, as the oracle does, so that both cut
// bins at the same places. A region that names no image, is not finite or takes too many samples gives
// 0: the functions refuse it beforehand, a plan's caller may not have asked. Index holds every output's
// number and every place in an image.
#include "ops.cuh"

struct Roi {
    long long outputs, batch, channels, height, width;
    int bins_y, bins_x, sampling_ratio, most_samples, half_pixel, channels_last;
    double spatial_scale;
};

// The bin that an output element stands for, and the plane it reads.
template <class Index> struct Bin {
    long long roi;
    int x, y;
    Index channel, step_x, step_y;

    __device__ Bin(const Roi& p, Index n) {
        const Index channels = p.channels, width = p.width;
        if (p.channels_last) channel = take(n, channels);
        x = take<int>(n, p.bins_x);
        y = take<int>(n, p.bins_y);
        if (!p.channels_last) channel = take(n, channels);
        roi = n;
        step_x = p.channels_last ? channels : 1;
        step_y = step_x * width;
    }
    template <class Size> __device__ static Size take(Index& n, Size size) {
        const Index quotient = n / size, remainder = n - quotient * size;
        n = quotient;
        return static_cast<Size>(remainder);
    }
    __device__ long long plane(const Roi& p, long long image) const {
        const long long size = p.height * p.width;
        return image * p.channels * size + (p.channels_last ? channel : channel * size);
    }
    __device__ Index at(Index row, Index column) const { return row * step_y + column * step_x; }
};

// Half away from zero; false for a coordinate that no 32-bit integer holds.
__device__ inline bool nearest(float x, long long& whole) {
    if (!(magnitude(x) < 2147483648.0f)) return false;
    float t = truncf(x);
    if (magnitude(add(x, -t)) >= 0.5f) t += x < 0 ? -1.0f : 1.0f;
    whole = static_cast<long long>(t);
    return true;
}

__device__ inline long long clamped(long long position, long long size) {
    return position < 0 ? 0 : position > size ? size : position;
}

// The rows (or columns) [begin, end) of bin i of a region from first to last.
template <class Index>
__device__ inline void bin_range(long long first, long long last, int bins, int i, long long size,
                                 Index& begin, Index& end) {
    long long length = last - first + 1 > 1 ? last - first + 1 : 1;
    float width = divide(static_cast<float>(length), static_cast<float>(bins));
    begin = static_cast<Index>(clamped(static_cast<long long>(floorf(multiply(i, width))) + first, size));
    end = static_cast<Index>(clamped(static_cast<long long>(ceilf(multiply(i + 1, width))) + first, size));
}

template <class T, class Index>
__global__ void __launch_bounds__(256)
max_roi_pool(const T* __restrict__ x, const T* __restrict__ rois, T* __restrict__ y, const Roi p) {
    const Index n = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= p.outputs) return;
    const Bin<Index> bin(p, n);
    const T* roi = rois + bin.roi * 5;
    const double image = widen(value(roi[0]));
    long long corner[4];
    bool usable = image >= 0 && image < p.batch && image == floor(image);
    for (int i = 0; i < 4; ++i)
        usable &= nearest(multiply(Round<float>::from(value(roi[1 + i])),
                                   Round<float>::from(p.spatial_scale)), corner[i]);
    auto best = lowest<T>();
    bool empty = true;
    if (usable) {
        Index top, bottom, left, right;
        bin_range(corner[1], corner[3], p.bins_y, bin.y, p.height, top, bottom);
        bin_range(corner[0], corner[2], p.bins_x, bin.x, p.width, left, right);
        const T* plane = x + bin.plane(p, static_cast<long long>(image));
        empty = top >= bottom || left >= right;
        for (Index row = top; row < bottom; ++row)
            for (Index column = left; column < right; ++column)
                best = maximum(best, value(plane[bin.at(row, column)]));
    }
    y[n] = Round<T>::from(empty ? 0 : best);
}

// The sample points of one bin along one axis: no more than the first that are too many.
template <class Real, class Index> struct Line {
    Real start, width;
    int count;
    Index size;

    __device__ Line(const Roi& p, Real first, Real last, int bins, int i, Index length) {
        Real extent = add(last, negative(first));
        if (!p.half_pixel && !(extent >= 1)) extent = 1;
        if (p.half_pixel) first = add(first, Real(-0.5));
        width = divide(extent, Real(bins));
        start = add(first, multiply(Real(i), width));
        const double samples = ceil(widen(width)), most = p.most_samples + 1.0;
        count = static_cast<int>(samples > 0 ? samples < most ? samples : most : 0);
        if (p.sampling_ratio > 0) count = p.sampling_ratio;
        size = length;
    }

    // The positions beside sample s and their weights; false for a sample outside [-1, size].
    __device__ bool at(int s, Index (&position)[2], Real (&weight)[2]) const {
        Real step = divide(multiply(add(Real(s), Real(0.5)), width), Real(count));
        Real q = add(start, step);
        if (!(q >= -1 && q <= size)) return false;
        const Index last = size - 1;
        q = q > 0 ? (q < last ? q : Real(last)) : Real(0);
        position[0] = q < last ? static_cast<Index>(q) : last;  // which Real may not hold
        position[1] = position[0] < last ? position[0] + 1 : last;
        weight[1] = add(q, -Real(position[0]));
        weight[0] = add(Real(1), -weight[1]);
        return true;
    }
};

// The samples of one bin: each is four weighted corners, and one outside the image is a 0.
template <class T, class Index> struct Samples {
    using Real = typename Element<T>::Value;
    const Line<Real, Index>&rows, &columns;
    const Bin<Index>& bin;
    const T* plane;

    __device__ long long count() const { return static_cast<long long>(rows.count) * columns.count; }

    // Merges all corners row by row, each as lift gives it.
    template <class Value, class Lift, class Merge>
    __device__ Value reduce(Value start, Lift lift, Merge merge) const {
        Value result = start;
        for (int i = 0; i < rows.count; ++i) {
            Index row[2], column[2];
            Real by_row[2], by_column[2];
            bool inside = rows.at(i, row, by_row);
            Value line = start;
            for (int j = 0; j < columns.count; ++j) {
                if (!inside || !columns.at(j, column, by_column)) {
                    line = merge(line, lift(Real(0)));
                    continue;
                }
                for (int corner = 0; corner < 4; ++corner) {
                    int r = corner / 2, c = corner % 2;
                    line = merge(line, lift(multiply(value(plane[bin.at(row[r], column[c])]),
                                                     multiply(by_row[r], by_column[c]))));
                }
            }
            result = merge(result, line);
        }
        return result;
    }

    __device__ T greatest() const {
        return Round<T>::from(reduce(lowest<T>(), [](Real v) { return v; },
                                     [](Real a, Real b) { return maximum(a, b); }));
    }

    // The terms are scaled where their plain sum overflows.
    __device__ T mean() const {
        Real sum = reduce(Real(0), [](Real v) { return v; }, [](Real a, Real b) { return add(a, b); });
        if (finite(sum)) return Round<T>::from(divide(sum, Real(count())));
        const ScaledSum<T> scaled{};
        double wide = reduce(0.0, [&](Real v) { return scaled.lift(v, 0); },
                             [](double a, double b) { return add(a, b); });
        return Round<T>::from(scaled.mean(wide, count()));
    }
};

template <class T, bool Maximum, class Index>
__global__ void __launch_bounds__(256)
roi_align(const T* __restrict__ x, const T* __restrict__ rois, const long long* __restrict__ images,
          T* __restrict__ y, const Roi p) {
    using Real = typename Element<T>::Value;
    const Index n = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= p.outputs) return;
    const Bin<Index> bin(p, n);
    Real corner[4];
    bool usable = images[bin.roi] >= 0 && images[bin.roi] < p.batch;
    for (int i = 0; i < 4; ++i) {
        corner[i] = multiply(value(rois[bin.roi * 4 + i]), Round<Real>::from(p.spatial_scale));
        usable &= magnitude(corner[i]) < Real(2147483648.0);
    }
    if (!usable) {
        y[n] = T{};
        return;
    }
    const Line<Real, Index> rows(p, corner[1], corner[3], p.bins_y, bin.y, static_cast<Index>(p.height));
    const Line<Real, Index> columns(p, corner[0], corner[2], p.bins_x, bin.x, static_cast<Index>(p.width));
    const Samples<T, Index> samples{rows, columns, bin, x + bin.plane(p, images[bin.roi])};
    T result{};
    if (samples.count() > 0 && samples.count() <= p.most_samples) {
        if constexpr (Maximum) result = samples.greatest();
        else result = samples.mean();
    }
    y[n] = result;
}
