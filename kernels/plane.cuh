// What plane.cu and plane_staged.cu share: several threads take one output and merge what they saw.
//
// A block serves Outputs outputs with Workers threads each, 256 or fewer in all. Channels first the
// workers of an output are neighbours, unless planes are in shared memory, so that a warp reads
// consecutive taps, by vectors of Load of them where the taps of a row adjoin and no window leaves the
// input. Windows of one row may begin anywhere: what lies outside of whole vectors is read singly.
// Channels last the outputs are neighbours, so that a warp reads consecutive channels. Partial results
// meet in a fixed tree, within a warp by shuffles, else in shared memory: the same input at the same place
// gives the same bits.
#pragma once
#include "staged.cuh"
#include "window.cuh"

// What the lane whose number differs by `bits` holds.
template <class T> __device__ inline T of_lane(T own, int bits) {
    return __shfl_xor_sync(0xffffffff, own, bits);
}
template <class Value, class Code>
__device__ inline Found<Value, Code> of_lane(Found<Value, Code> own, int bits) {
    return {of_lane(own.best, bits), of_lane(own.code, bits)};
}

// How the taps of a row lie: not all adjoining, some maybe outside the input; in vectors that are aligned;
// adjoining, of a window with this one row, that begins or ends between vectors.
enum Taps { scattered, aligned, ragged };

template <class Op, class Place, class Index, int Outputs, int Workers, bool ChannelsLast, Taps Lie,
          int Load, bool Staged = false>
struct Together {
    using T = typename Op::Element;
    static constexpr int inner = Place::axes - 1;
    static constexpr bool together = !ChannelsLast && Workers <= 32;  // workers of an output, in a warp
    static_assert(!Staged || together, "they meet by shuffles");
    // From lane to lane of them. Neighbouring lanes read neighbouring planes, which seldom meet in a bank.
    static constexpr int apart = Staged ? 32 / Workers : 1;

    // What a block reduces of a window: rows of valid taps, of each of them units of Load taps, and the
    // taps of a ragged one that lie outside of these, the first `lead` of them in front.
    struct Part {
        Run<Index> rows, units;
        int lead, ends;
    };

    const Place& place;
    const Index n;                          // number of the output
    const long long outputs;                // as many as there are: from there on n is none
    const T* x;
    const Part part;
    const typename Op::Accumulator* parts;  // what plane_parts left of this output, or null
    int part_count;

    __device__ static int worker() {
        if (ChannelsLast) return threadIdx.x / Outputs;
        return Staged ? threadIdx.x % 32 / apart : threadIdx.x % Workers;
    }
    __device__ static int slot() {
        if (ChannelsLast) return threadIdx.x % Outputs;
        return Staged ? threadIdx.x / 32 * apart + threadIdx.x % apart : threadIdx.x / Workers;
    }

    __device__ static Part all(const Place& place, bool active, const T* x) {
        Index rows = 1;
#pragma unroll
        for (int a = 0; a < inner; ++a) rows *= place.count[a];
        const auto address = reinterpret_cast<size_t>(x + (Lie == ragged ? place.first[inner] : 0));
        return all(rows, active ? place.count[inner] : 0, static_cast<unsigned>(address / sizeof(T)));
    }
    // Rows of so many taps, of which a ragged one begins with this element, counted from a whole vector.
    __device__ static Part all(Index rows, Index count, unsigned begin) {
        const int lead = Lie == ragged ? least<Index>(-begin & (Load - 1), count) : 0;
        // A division by a power of two; the compiler does not know that counts are never negative.
        const Index units = (count - lead) >> (31 - __clz(Load));
        return {{0, rows}, {0, units}, lead, Lie == ragged ? static_cast<int>(count - units * Load) : 0};
    }
    // One of so many parts: rows, or units of each where there are fewer rows.
    __device__ static Part one(const Part& whole, int number, int parts) {
        Part part = whole;
        if (whole.rows.count >= parts) part.rows = share(whole.rows, number, parts);
        else part.units = share(whole.units, number, parts);
        if (number > 0) part.ends = 0;
        return part;
    }
    __device__ static Run<Index> share(const Run<Index>& whole, int number, int parts) {
        const Index each = (whole.count - 1) / parts + 1, first = least(each * number, whole.count);
        return {first, least(each, whole.count - first)};
    }

    // Load neighbouring taps.
    struct Unit {
        static constexpr int bytes = Load * sizeof(T), words = bytes < 4 ? 1 : bytes / 4;
        T element;
        unsigned word[words];

        __device__ void load(const T* from) {
            if constexpr (Load == 1) element = *from;
            else if constexpr (Staged) load_staged(reinterpret_cast<const unsigned char*>(from));
            else load_words<bytes>(from, word);
        }
        __device__ void load_staged(const unsigned char* from) {
            if constexpr (bytes == 16) from = shared + 16 * spread(static_cast<int>(from - shared) / 16);
            load_shared<bytes>(from, word);
        }
        template <class Any>
        __device__ void merge(const Any& op, typename Any::Accumulator& a, Index code) const {
#pragma unroll
            for (int e = 0; e < Load; ++e)
                a = op.merge(a, op.lift(Load == 1 ? value(element) : Words<T>::value(word, e), code + e));
        }
    };

    // How far it is to the next tap, in memory and in the numbers of the valid taps.
    struct Distance {
        Index offset, code;
    };

    // Merges the units first, first + step, ... below last, a few of them in flight at once, more of narrow
    // ones: fewer where Indices of so many taps make long code, one in second looks and for slow operators.
    template <class Any>
    __device__ void reduce(const Any& op, typename Any::Accumulator& a, Index first, Index last,
                           int step, const T* from, Index code, const Distance& next) const {
        constexpr bool narrow = Load * sizeof(T) <= 4 && sizeof(Index) == 4 && !Op::indices && !Staged;
        constexpr int few = Op::indices ? least(most(16 / Load, 1), 4) : 4;
        constexpr int flight = Any::rare || Op::slow ? 1 : narrow ? 8 : few, fewer = flight / 4;
        // Also past the last unit, therefore in 64 bits.
        const long long stride = static_cast<long long>(step) * next.offset;
        from += static_cast<long long>(first) * next.offset;
        auto left = [&](int units) { return first + (units - 1) * step < last; };
        auto take = [&](int units) {
            Unit unit[flight];
#pragma unroll
            for (int u = 0; u < units; ++u) unit[u].load(from + u * stride);
#pragma unroll
            for (int u = 0; u < units; ++u) unit[u].merge(op, a, code + (first + u * step) * next.code);
            first += units * step, from += units * stride;
        };
#pragma unroll 1
        while (left(flight)) take(flight);
#pragma unroll 1
        while (fewer > 1 && left(fewer)) take(fewer);
#pragma unroll 1
        while (flight > 1 && left(1)) take(1);
    }

    template <class Any> __device__ typename Any::Accumulator operator()(const Any& op) const {
        auto accumulator = op.start();
        reduce_window(op, accumulator);
        return meet(op, accumulator);
    }

    __device__ typename Op::Accumulator operator()(const Op& op) const {
        auto accumulator = op.start();
        if (parts) {
#pragma unroll 1
            for (int i = worker(); i < part_count; i += Workers)
                accumulator = op.merge(accumulator, parts[i]);
        } else {
            reduce_window(op, accumulator);
        }
        return meet(op, accumulator);
    }

    // From one unit of a row to the next, and from one position of an outer axis.
    __device__ Distance across() const {
        const Axis<Index>& axis = place.w.axis[inner];
        return {Lie == scattered ? place.dilation(inner) * axis.step : Load, Load};
    }
    __device__ Index down(int a) const { return place.dilation(a) * place.w.axis[a].step; }

    template <class Any>
    __device__ void reduce_window(const Any& op, typename Any::Accumulator& a) const {
        const T* from = x;
        if constexpr (!Staged) {
#pragma unroll
            for (int i = 0; i <= inner; ++i) from += place.first[i] * place.w.axis[i].step;
        }
        if constexpr (inner == 0) reduce_columns(op, a, from);
        else if constexpr (inner == 1) reduce_rows(op, a, part.rows, from, 0);
        else reduce_planes(op, a, from);
    }

    template <class Any>
    __device__ void reduce_columns(const Any& op, typename Any::Accumulator& a, const T* from) const {
        const Run<Index>& units = part.units;
        reduce(op, a, units.first + worker(), end(units), Workers, from + part.lead, part.lead, across());
        if constexpr (Lie == ragged) reduce_ends(op, a, from);
    }

    template <class Any>
    __device__ void reduce_ends(const Any& op, typename Any::Accumulator& a, const T* from) const {
        const Index between = place.count[inner] - part.ends;
#pragma unroll 1
        for (int i = worker(); i < part.ends; i += Workers) {
            const Index code = i < part.lead ? i : i + between;
            a = op.merge(a, op.lift(value(from[code]), code));
        }
    }

    // Some rows of a plane: down columns, 2^log workers beside each other, or along rows, all of them in
    // turn, whichever gives each worker more at once. One loop for both.
    template <class Any>
    __device__ void reduce_rows(const Any& op, typename Any::Accumulator& a, const Run<Index>& rows,
                                const T* from, Index code) const {
        const Run<Index>& units = part.units;
        const Distance next_column = across(), next_row{down(inner - 1), place.count[inner]};
        const int wide = least<Index>(units.count, Workers);
        const int log = (32 - __clz(wide - 1)) & 31;
        const bool downwards = rows.count > units.count >> log;
        const Index column = units.first + (worker() & ((1u << log) - 1));
        const Index begin_along = downwards ? rows.first + (worker() >> log) : units.first + worker();
        const Index end_along = downwards ? end(rows) : end(units);
        const int step = downwards ? Workers >> log : Workers, other_step = downwards ? 1 << log : 1;
        const Distance along = downwards ? next_row : next_column;
        const Distance other = downwards ? next_column : next_row;
        const Index end_other = downwards ? end(units) : end(rows);
#pragma unroll 1
        for (Index i = downwards ? column : rows.first; i < end_other; i += other_step)
            reduce(op, a, begin_along, end_along, step, from + i * other.offset, code + i * other.code,
                   along);
    }

    // The rows of windows of more axes, plane by plane.
    template <class Any>
    __device__ void reduce_planes(const Any& op, typename Any::Accumulator& a, const T* from) const {
        if (part.rows.count == 0) return;
        const Index height = place.count[inner - 1];
        for (Index plane = part.rows.first / height; plane * height < end(part.rows); ++plane) {
            const Index row = plane * height, first = most<Index>(part.rows.first - row, 0);
            reduce_rows(op, a, {first, least(end(part.rows) - row, height) - first},
                        from + plane_offset(plane), row * place.count[inner]);
        }
    }

    __device__ Index plane_offset(Index plane) const {
        Index sum = 0;
#pragma unroll
        for (int a = inner - 2; a >= 0; --a) {
            Index above = a ? plane / place.count[a] : 0;
            sum += (plane - above * place.count[a]) * down(a);
            plane = above;
        }
        return sum;
    }

    // Merges the workers of every output of the block; all of them get the result.
    template <class Any, class Accumulator>
    __device__ Accumulator meet(const Any& op, Accumulator accumulator) const {
        if constexpr (together) {
#pragma unroll
            for (int half = Workers / 2; half > 0; half /= 2)
                accumulator = op.merge(accumulator, of_lane(accumulator, half * apart));
            return accumulator;
        }
        Accumulator* seats = reinterpret_cast<Accumulator*>(shared);
        int own = worker() * Outputs + slot();
        __syncthreads();
        seats[own] = accumulator;
        __syncthreads();
#pragma unroll 1
        for (int half = Workers / 2; half > 0; half /= 2) {
            if (worker() < half) seats[own] = op.merge(seats[own], seats[own + half * Outputs]);
            __syncthreads();
        }
        return seats[slot()];
    }

    __device__ bool any(bool wanted) const {
        wanted &= n < outputs;
        if constexpr (Workers == 1) return wanted;
        return together ? __any_sync(0xffffffff, wanted) : __syncthreads_or(wanted);
    }
};
