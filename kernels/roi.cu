// MaxRoiPool and RoiAlign: one thread per output element (region, channel, bin).
//
// Coordinates are computed with one rounding per operation, as the oracle does, so that both cut
// bins at the same places. A region that names no image, or is not finite, gives 0: the functions
// refuse it beforehand, a plan's caller may not have asked.
#include "element.cuh"

struct Roi {
    long long outputs;
    int batch, channels, height, width, bins_y, bins_x, sampling_ratio, half_pixel, channels_last;
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

__device__ inline long long within(long long position, int size) {
    return position < 0 ? 0 : position > size ? size : position;
}

// The rows (or columns) [begin, end) of bin i of a region from first to last.
__device__ inline void bin_range(long long first, long long last, int bins, int i, int size,
                                 long long& begin, long long& end) {
    long long length = last - first + 1 > 1 ? last - first + 1 : 1;
    float width = divide(static_cast<float>(length), static_cast<float>(bins));
    begin = within(static_cast<long long>(floorf(multiply(i, width))) + first, size);
    end = within(static_cast<long long>(ceilf(multiply(i + 1, width))) + first, size);
}

template <class T>
__global__ void __launch_bounds__(256)
max_roi_pool(const T* __restrict__ x, const T* __restrict__ rois, T* __restrict__ y, const Roi p) {
    long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= p.outputs) return;
    const Bin bin(p, n);
    const T* roi = rois + bin.roi * 5;
    float image = Round<float>::from(value(roi[0]));
    long long corner[4];
    bool usable = image >= 0 && image < p.batch;
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

// The sample points of one bin along one axis.
template <class Real> struct Samples {
    Real start, width;
    int count, size;

    __device__ Samples(const Roi& p, Real first, Real last, int bins, int i, int length) {
        Real extent = add(last, -first);
        if (!p.half_pixel && !(extent >= 1)) extent = 1;
        if (p.half_pixel) first = add(first, Real(-0.5));
        width = divide(extent, Real(bins));
        start = add(first, multiply(Real(i), width));
        count = p.sampling_ratio > 0 ? p.sampling_ratio : width > 0 ? static_cast<int>(ceil(width)) : 0;
        size = length;
    }

    // The positions beside sample s and their weights; both 0 outside [-1, size].
    __device__ void at(int s, int& low, int& high, Real& to_low, Real& to_high) const {
        Real step = divide(multiply(add(Real(s), Real(0.5)), width), Real(count));
        Real q = add(start, step);
        Real inside = q >= -1 && q <= size ? 1 : 0;
        q = q > 0 ? (q < size - 1 ? q : Real(size - 1)) : Real(0);
        low = static_cast<int>(q);
        high = low + 1 < size ? low + 1 : low;
        to_high = multiply(add(q, -Real(low)), inside);
        to_low = add(inside, -to_high);
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
        y[n] = Round<T>::from(Real(0));
        return;
    }
    const Samples<Real> rows(p, corner[1], corner[3], p.bins_y, bin.y, p.height);
    const Samples<Real> columns(p, corner[0], corner[2], p.bins_x, bin.x, p.width);
    const T* plane = x + bin.plane(p, images[bin.roi]);
    Real result = Maximum ? lowest<T>() : Real(0);
    for (int i = 0; i < rows.count; ++i) {
        int row[2], column[2];
        Real by_row[2], by_column[2];
        rows.at(i, row[0], row[1], by_row[0], by_row[1]);
        Real sum = 0;
        for (int j = 0; j < columns.count; ++j) {
            columns.at(j, column[0], column[1], by_column[0], by_column[1]);
            for (int corner_of_four = 0; corner_of_four < 4; ++corner_of_four) {
                int r = corner_of_four / 2, c = corner_of_four % 2;
                Real v = multiply(value(plane[bin.at(row[r], column[c])]),
                                  multiply(by_row[r], by_column[c]));
                if constexpr (Maximum) result = maximum(result, v);
                else sum = add(sum, v);
            }
        }
        if constexpr (!Maximum) result = add(result, sum);
    }
    long long samples = static_cast<long long>(rows.count) * columns.count;
    if (samples == 0) result = 0;
    else if constexpr (!Maximum) result = divide(result, Real(samples));
    y[n] = Round<T>::from(result);
}
