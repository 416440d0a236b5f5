// The window: the geometry of each spatial axis, and the only loop over them.
//
// Every field is exact for any legal problem when Index is long long; the plan proves from the
// element counts where int is enough. Layouts are strides, so channels first and last, views and
// both storage orders are data, not code.
#pragma once
#include "ops.cuh"

// Division by a number known on the host. For int: (mulhi(n, multiplier) + n) >> shift, n < 2^31.
template <class Index> struct Divisor;
template <> struct Divisor<int> {
    int divisor;
    unsigned multiplier, shift;
    __device__ int quotient(int n) const {
        return static_cast<int>((__umulhi(n, multiplier) + static_cast<unsigned>(n)) >> shift);
    }
};
template <> struct Divisor<long long> {
    long long divisor;
    __device__ long long quotient(long long n) const { return n / divisor; }
};

template <class Index> struct Axis {
    Index size, kernel, stride, dilation, pad_begin;
    Index count_begin, count_end;  // positions that AveragePool counts: the input, or its padding too
    Index step;                    // elements from one position to the next in x
    long long index_step;          // and in the numbering of Indices
    Divisor<Index> out;
};

template <int Axes, class Index> struct Window {
    long long outputs;
    long long batch_step, channel_step, index_batch_step, index_channel_step;
    Norm norm;
    Divisor<Index> channels;
    Axis<Index> axis[Axes];
};

// Sizes known at compile time, 0 where they are not.
template <int... N> struct Sizes {
    static constexpr int axes = sizeof...(N);
    static constexpr bool known = ((N > 0) && ...);
    static constexpr int product = (1 * ... * N);
    __host__ __device__ static constexpr int at(int i) {
        constexpr int sizes[] = {N...};
        return sizes[i];
    }
    __host__ __device__ static constexpr int dilation(int) { return 1; }
};
// Those of a kernel whose taps lie apart.
template <class Kernel, class Dilations> struct Dilated : Kernel {
    __host__ __device__ static constexpr int dilation(int i) { return Dilations::at(i); }
};

// Takes the innermost coordinate off n.
template <class Index> __device__ inline Index split(Index& n, const Divisor<Index>& by) {
    const Index quotient = by.quotient(n), remainder = n - quotient * by.divisor;
    n = quotient;
    return remainder;
}

__device__ inline bool within(int position, int size) {
    return static_cast<unsigned>(position) < static_cast<unsigned>(size);
}

// Takes count steps, as many at once as there should be loads in flight, and the last ones singly.
template <int Flight, class Step> __device__ inline void in_flights(int count, Step step) {
#pragma unroll 1
    for (; count >= Flight; count -= Flight) step(Flight);
#pragma unroll 1
    for (; Flight > 1 && count > 0; --count) step(1);
}

// What so many neighbouring windows are, in each of which the last one begins: the taps of the first one are
// merged from its end back to where each begins, and those behind it from there on, once for all. Taps are
// tap(i), results go to put(window, result). Loops have constant ends: others cost the compiler more time.
template <int Kernel, int Stride, int Windows, class Op, class Tap, class Put>
__device__ inline void merge_windows(const Op& op, Tap tap, Put put) {
    constexpr int behind = (Windows - 1) * Stride;
    typename Op::Accumulator from[Kernel], up_to[behind + 1];
    from[Kernel - 1] = tap(Kernel - 1);
#pragma unroll
    for (int i = Kernel - 2; i >= 0; --i) from[i] = op.merge(tap(i), from[i + 1]);
    put(0, from[0]);
    if constexpr (behind > 0) {
        up_to[1] = tap(Kernel);
#pragma unroll
        for (int i = 1; i < behind; ++i) up_to[i + 1] = op.merge(up_to[i], tap(Kernel + i));
#pragma unroll
        for (int window = 1; window < Windows; ++window)
            put(window, op.merge(from[window * Stride], up_to[window * Stride]));
    }
}

template <class Index> __device__ inline Index divide_up(Index n, Index divisor) {
    return divisor == 1 ? n : (n + divisor - 1) / divisor;
}

// A run of taps: the first one, and how many there are.
template <class Index> struct Run {
    Index first, count;
};
template <class Index> __device__ inline Index end(const Run<Index>& run) { return run.first + run.count; }

// The taps of a window starting at `start` that read positions low .. high - 1.
template <class Index>
__device__ inline Run<Index> clip(Index start, Index low, Index high, Index kernel, Index dilation) {
    Index first = start < low ? divide_up(low - start, dilation) : 0;
    Index end = start < high ? divide_up(high - start, dilation) : 0;
    if (end > kernel) end = kernel;
    return {first, end > first ? end - first : 0};
}

// One output element: its window, clipped to the input, and where both lie in memory. Inside: the
// plan has proved that no window leaves the input.
template <int Axes, class Index, class Kernel, class Stride, bool ChannelsLast, bool Inside = false>
struct Place {
    static constexpr int axes = Axes;
    const Window<Axes, Index>& w;
    Index start[Axes];  // position of the first tap, in the padding or not
    Index first[Axes];  // position of the first valid tap
    Index count[Axes];  // valid taps
    long long base, index_base;
    bool whole = true;  // no tap is in the padding

    // Decodes a flat output position into image, channel and one coordinate per axis.
    __device__ Place(const Window<Axes, Index>& window, Index n) : w(window) {
        Index channel;
        if constexpr (ChannelsLast) channel = split(n, w.channels);
#pragma unroll
        for (int a = Axes - 1; a >= 0; --a) clip_axis(a, split(n, w.axis[a].out));
        if constexpr (!ChannelsLast) channel = split(n, w.channels);
        base = n * w.batch_step + channel * w.channel_step;
        index_base = n * w.index_batch_step + channel * w.index_channel_step;
    }

    __device__ Index kernel(int a) const { return Kernel::known ? Kernel::at(a) : w.axis[a].kernel; }
    __device__ Index stride(int a) const { return Stride::known ? Stride::at(a) : w.axis[a].stride; }
    __device__ Index dilation(int a) const {
        return Kernel::known ? Kernel::dilation(a) : w.axis[a].dilation;
    }

    __device__ void clip_axis(int a, Index coordinate) {
        start[a] = coordinate * stride(a) - (Inside ? 0 : w.axis[a].pad_begin);
        Run<Index> taps{0, kernel(a)};
        if (!Inside) taps = clip<Index>(start[a], 0, w.axis[a].size, kernel(a), dilation(a));
        first[a] = start[a] + taps.first * dilation(a);
        count[a] = taps.count;
        whole &= taps.count == kernel(a);
    }

    // Number of valid taps.
    __device__ Index taps() const {
        Index total = 1;
#pragma unroll
        for (int a = 0; a < Axes; ++a) total *= count[a];
        return total;
    }

    // Taps that an average divides by: the valid ones, or those in the explicit padding too.
    __device__ long long counted() const {
        if (Inside) return taps();
        long long total = 1;
#pragma unroll
        for (int a = 0; a < Axes; ++a)
            total *= clip<Index>(start[a], w.axis[a].count_begin, w.axis[a].count_end, kernel(a),
                                 dilation(a)).count;
        return total > 0 ? total : 1;
    }

    // Where the tap numbered code lies, from base; `index` gains its place in the numbering of
    // Indices.
    __device__ Index offset(Index code, long long& index) const {
        Index sum = 0;
#pragma unroll
        for (int a = Axes - 1; a >= 0; --a) {
            Index outer = a ? code / count[a] : 0;
            Index position = first[a] + (code - outer * count[a]) * dilation(a);
            sum += position * w.axis[a].step;
            index += position * w.axis[a].index_step;
            code = outer;
        }
        return sum;
    }
};

// Visits every valid tap in row-major order with its offset from base and its code. Whole: no tap
// is in the padding, so the counts are the kernel's own and the loops unroll.
template <class Kernel, bool Whole, int A, class Place, class Index, class Visit>
__device__ inline void for_each_tap(const Place& place, Index offset, Index code, Visit& visit) {
    if constexpr (A == Place::axes) {
        visit(offset, code);
    } else {
        constexpr int unroll = Whole ? Kernel::at(A) : 1;
        const Index count = Whole ? Kernel::at(A) : place.count[A];
        const Index step = place.w.axis[A].step * place.dilation(A);
        offset += place.first[A] * place.w.axis[A].step;
#pragma unroll unroll
        for (Index t = 0; t < count; ++t)
            for_each_tap<Kernel, Whole, A + 1>(place, offset + t * step, code * count + t, visit);
    }
}

// One thread reduces a window alone.
template <class Element, class Place, class Kernel, class Index> struct Alone {
    const Place& place;
    const Element* x;

    template <class Op> __device__ typename Op::Accumulator operator()(const Op& op) const {
        auto accumulator = op.start();
        auto visit = [&](Index offset, Index code) {
            accumulator = op.merge(accumulator, op.lift(value(x[offset]), code));
        };
        if constexpr (Kernel::known && !Op::rare) {
            if (place.whole) {
                for_each_tap<Kernel, true, 0>(place, Index(0), Index(0), visit);
                return accumulator;
            }
        }
        for_each_tap<Kernel, false, 0>(place, Index(0), Index(0), visit);
        return accumulator;
    }

    __device__ bool any(bool wanted) const { return wanted; }
};

// Stores the result of one output element: a rounded value, or a maximum and its position.
template <class Op, class Place, class Traverse, class Index>
__device__ inline void store(const Op& op, const Place& place, Traverse& traverse, Index n, bool writes,
                             const typename Op::Element* x, typename Op::Out* y,
                             typename Op::Index* indices) {
    if constexpr (Op::indices) {
        Index code = result(op, traverse, 1);
        if (!writes) return;
        bool empty = place.taps() == 0;
        long long index = place.index_base;
        y[n] = empty ? Round<typename Op::Out>::from(lowest<typename Op::Element>())
                     : x[place.base + place.offset(code, index)];
        indices[n] = static_cast<typename Op::Index>(empty ? -1 : index);
    } else {
        typename Op::Out rounded = result(op, traverse, Op::counts ? place.counted() : 1);
        if (writes) y[n] = rounded;
    }
}
