// MaxRoiPool and RoiAlign: one thread per output element (region, channel, bin).
//
// Coordinates are computed with one rounding per operation, as the oracle does, so that both cut
// bins at the same places. A region that names no image, is not finite or takes too many samples gives
// 0: the functions refuse it beforehand, a plan's caller may not have asked.
#include "ops.cuh"

struct Roi {
    long long outputs;
    int batch, channels, height, width, bins_y, bins_x, sampling_ratio, most_samples, half_pixel, channels_last;
    double spatial_scale;
};

// The bin that an output element stands for, and the plane it reads.
struct Bin {
    long long roi, base;
    int x, y, channel, step_x, step_y;

    __device__ Bin(const Roi& p, long long n) {
        if (p.channels_last) channel = take(n, p.channels);
        x = take(n, p.bins_x);
        y = take(n, p.bins_y);
        if (!p.channels_last) channel = take(n, p.channels);
        roi = n;
        step_x = p.channels_last ? p.channels : 1;
        step_y = step_x * p.width;
    }
    __device__ static int take(long long& n, int size) {
        int remainder = static_cast<int>(n % size);
        n /= size;
        return remainder;
    }
    __device__ long long plane(const Roi& p, long long image) const {
        long long first = image * p.channels * p.height * p.width;
        return p.channels_last ? first + channel
                               : first + static_cast<long long>(channel) * p.height * p.width;
    }
    __device__ long long at(long long row, long long column) const {
        return row * step_y + column * step_x;
    }
};

// Half away from zero; false for a coordinate that no 32-bit integer holds.
__device__ inline bool nearest(float x, long long& whole) {
    if (!(magnitude(x) < 2147483648.0f)) return false;
    float t = truncf(x);
    if (magnitude(add(x, -t)) >= 0.5f) t += x < 0 ? -1.0f : 1.0f;
    whole = static_cast<long long>(t);
    return true;
}

__device__ inline long long clamped(long long position, int size) {
    return position < 0 ? 0 : position > size ? size : position;
}

// The rows (or columns) [begin, end) of bin i of a region from first to last.
__device__ inline void bin_range(long long first, long long last, int bins, int i, int size,
                                 long long& begin, long long& end) {
    long long length = last - first + 1 > 1 ? last - first + 1 : 1;
    float width = divide(static_cast<float>(length), static_cast<float>(bins));
    begin = clamped(static_cast<long long>(floorf(multiply(i, width))) + first, size);
    end = clamped(static_cast<long long>(ceilf(multiply(i + 1, width))) + first, size);
}

template <class T>
__global__ void __launch_bounds__(256)
max_roi_pool(const T* __restrict__ x, const T* __restrict__ rois, T* __restrict__ y, const Roi p) {
    long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= p.outputs) return;
    const Bin bin(p, n);
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
        long long top, bottom, left, right;
        bin_range(corner[1], corner[3], p.bins_y, bin.y, p.height, top, bottom);
        bin_range(corner[0], corner[2], p.bins_x, bin.x, p.width, left, right);
        const T* plane = x + bin.plane(p, static_cast<long long>(image));
        empty = top >= bottom || left >= right;
        for (long long row = top; row < bottom; ++row)
            for (long long column = left; column < right; ++column)
                best = maximum(best, value(plane[bin.at(row, column)]));
    }
    y[n] = Round<T>::from(empty ? 0 : best);
}

// The sample points of one bin along one axis: no more than the first that are too many.
template <class Real> struct Line {
    Real start, width;
    int count, size;

    __device__ Line(const Roi& p, Real first, Real last, int bins, int i, int length) {
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
    __device__ bool at(int s, int (&position)[2], Real (&weight)[2]) const {
        Real step = divide(multiply(add(Real(s), Real(0.5)), width), Real(count));
        Real q = add(start, step);
        if (!(q >= -1 && q <= size)) return false;
        q = q > 0 ? (q < size - 1 ? q : Real(size - 1)) : Real(0);
        position[0] = static_cast<int>(q);
        position[1] = position[0] + 1 < size ? position[0] + 1 : position[0];
        weight[1] = add(q, -Real(position[0]));
        weight[0] = add(Real(1), -weight[1]);
        return true;
    }
};

// The samples of one bin: each is four weighted corners, and one outside the image is a 0.
template <class T> struct Samples {
    using Real = typename Element<T>::Value;
    const Line<Real>&rows, &columns;
    const Bin& bin;
    const T* plane;

    __device__ long long count() const { return static_cast<long long>(rows.count) * columns.count; }

    // Merges all corners row by row, each as lift gives it.
    template <class Value, class Lift, class Merge>
    __device__ Value reduce(Value start, Lift lift, Merge merge) const {
        Value result = start;
        for (int i = 0; i < rows.count; ++i) {
            int row[2], column[2];
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

template <class T, bool Maximum>
__global__ void __launch_bounds__(256)
roi_align(const T* __restrict__ x, const T* __restrict__ rois, const long long* __restrict__ images,
          T* __restrict__ y, const Roi p) {
    using Real = typename Element<T>::Value;
    long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= p.outputs) return;
    const Bin bin(p, n);
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
    const Line<Real> rows(p, corner[1], corner[3], p.bins_y, bin.y, p.height);
    const Line<Real> columns(p, corner[0], corner[2], p.bins_x, bin.x, p.width);
    const Samples<T> samples{rows, columns, bin, x + bin.plane(p, images[bin.roi])};
    T result{};
    if (samples.count() > 0 && samples.count() <= p.most_samples) {
        if constexpr (Maximum) result = samples.greatest();
        else result = samples.mean();
    }
    y[n] = result;
}
