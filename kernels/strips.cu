// Overlapping windows of two axes, of more than a few taps: a warp walks down a strip of columns, of one
// plane or of several beside each other. For rows or, channels last, pixels that whole vectors fill,
// windows that are not so wide that most of a strip is halo, and no norm whose taps are a pow.
//
// Of its columns a lane keeps the run, where no other thread reads: as many rows as the window has, each
// merged with those from there on to the end of the run. A window that begins in the run is such a row and
// so much of the next run, which takes the place of this one row by row. So a row is read once, from
// memory a whole row ahead, and merged three times, whatever the window. Along a row the windows of a
// lane end in lanes behind it, whose prefixes it receives; the last lanes of a warp, whose windows
// would end in the next one, store nothing. No thread waits for another warp.
//
// Reread is for windows of so many rows that shared memory holds few whole runs, or none: a run is half of
// one, and each row is read a second time, where its own run begins.
//
// Sums are made in the same way, so that no tap is taken back. A strip whose sums overflow or lose small
// terms is walked down again, with its taps rescaled.
//
// Channels first a lane has neighbours of a row, the first of all lanes Shift in front of the first window,
// so that lanes begin on vectors, which are there as a whole or not at all. Words hold the 16- or 8-bit
// maxima of two strips, or their Paired sums of bytes.
//
// Channels last it has so many Pixels, 1, 2 or 4, and neighbouring channels of each, two of them in such a
// word; Abreast lanes have other channels of the same pixels, and strips of these follow each other. More
// pixels are less halo in smaller pieces, more lanes abreast more halo in larger ones. Lanes of one pixel
// exchange windows of 1, 2, 4, ... pixels.
//
// Of greater strides every stride-th row is reduced along a row; that of columns, Stride, is known here.
//
// Counted cost for each maximum of 512 x 512 planes: 15.0 for 13 x 13 of float32 and 24.7 for 63 x 63, 9.2
// and 15.6 for float16, 10.1 and 17.2 for uint8; channels last, of lanes abreast, which issue more and wait
// less, 25.1 and 41.2, 12.2 and 20.4, 13.6 and 23.8; at strides 2, of which there are a quarter, three times
// that. For each average 25.1 and 39.1, 23.7 and 37.6, 20.5 and 39.3; channels last 30.5 and 63.4, 28.0 and
// 61.1, 21.0 and 65.8.
#include "merged.cuh"
#include "shared.cuh"

struct Strips {
    int planes;          // or, channels last, images
    int height;          // outputs of a strip as if strides were 1
    int stored;          // lanes, or sets of them abreast, whose windows end in the strip
    int run;             // rows that a lane keeps
    Divisor<int> down;   // strips of the rows of a plane
    Divisor<int> lanes;  // of a plane or, channels last, of an image
    Divisor<int> groups; // strips of the channels of a pixel
    Divisor<int> stride; // of rows
};

// The words of an element less than any other.
template <class T> __device__ constexpr unsigned lowest_word(int i) {
    if (sizeof(T) == sizeof(double)) return i % 2 ? 0xfff00000 : 0;
    if (sizeof(T) == sizeof(float)) return 0xff800000;
    return Element<T>::half ? 0xfc00fc00 : 0xff80ff80;
}
template <> __device__ constexpr unsigned lowest_word<signed char>(int) { return 0x80808080; }
template <> __device__ constexpr unsigned lowest_word<unsigned char>(int) { return 0; }

// And those of an element that changes no result.
template <class Op> __device__ constexpr unsigned neutral_word(int i) {
    return Op::repeats ? lowest_word<typename Op::Element>(i) : 0;
}

// What a lane reads that has no columns: it needs no test of each row then.
template <class Op> __device__ __align__(16) const unsigned nothing_there[] = {
    neutral_word<Op>(0), neutral_word<Op>(1), neutral_word<Op>(2), neutral_word<Op>(3),
    neutral_word<Op>(4), neutral_word<Op>(5), neutral_word<Op>(6), neutral_word<Op>(7)};

template <class Op, int Width, int Store, int Shift, int Stride, bool Reread, int Pixels, int Abreast,
          bool Images>
struct Strip {
    using T = typename Op::Element;
    using Out = typename Op::Out;
    using Value = typename Merged<Op>::Accumulator;
    static constexpr int warp = 32, Vector = 32 / sizeof(Value), Unit = Vector / 2;  // of 32 and of 16 bytes
    using Values = Pack<Value, Vector>;
    static constexpr bool Last = Pixels > 0, twins = Op::pairs && !Last;
    static constexpr int halves = Op::pairs && Last ? 2 : 1;                       // channels of a value
    static constexpr int Across = Last ? Pixels : Vector, Deep = Vector / Across;  // columns, values of each
    static constexpr int Taken = Across > 1 ? Across / Stride : 1, Many = Taken * Deep;  // of results
    using Results = Pack<Value, Many>;
    static constexpr int bytes = Vector * halves * sizeof(T), words = bytes / 4;
    static constexpr int beside = Last ? Deep * halves : Many;  // results with no others between them
    static constexpr int ahead = 4;                             // rows from one asked for to one that is read
    // Taps that one divides by. An integer is the nearest one to a float quotient by no more than that.
    using Count = Few<Element<Out>::integer ? 32767 : 65536>;

    // Columns of the input and of the output, from the first row of each on.
    struct Columns {
        const T* from;
        int step, apart;  // from row to row, and from pixel to pixel
        Out* to;
        int results, output;  // of a row, and which column is the first of them as if strides were 1
        float along[Taken];   // taps of each column's windows that count
    };
    // A row of them as it lies in memory, and that of their twins.
    struct Row {
        unsigned own[words], twin[twins ? words : 1];
    };

    const Window<2, int>& w;
    const Strips s;  // a copy: by reference it costs the compiler more time
    Merged<Op> merged;
    const int lane, top;  // the first row of outputs
    const Shared<Value> run;
    int first;            // of all rows from there on, the one that is stored first
    int wait;             // rows from the next one to one that is stored
    Columns own, twin;

    __device__ Strip(const T* x, Out* y, const Strips& strips, const Window<2, int>& window)
        : w(window), s(strips), merged(window.norm), lane(threadIdx.x % warp),
          top(row_of_strips() * strips.height),
          run(::pinned(Shared<Value>(reinterpret_cast<Value*>(shared)) +
                       (int(threadIdx.x / warp) * strips.run * Vector * warp + lane * Unit))) {
        first = Stride > 1 ? s.stride.quotient(top + s.stride.divisor - 1) : top;
        const int number = s.down.quotient(blockIdx.x) * (blockDim.x / warp) + threadIdx.x / warp;
        const int strip = twins ? 2 * number : number;
        own = columns(x, y, strip);
        if constexpr (twins) twin = columns(x, y, strip + 1);
    }

    __device__ const Axis<int>& outer() const { return w.axis[0]; }
    __device__ const Axis<int>& inner() const { return w.axis[1]; }
    __device__ int row_of_strips() const {
        const int block = blockIdx.x;
        return block - s.down.quotient(block) * s.down.divisor;
    }

    // Channels last, strips of all channels of the same pixels are neighbours.
    __device__ Columns columns(const T* x, Out* y, int strip) const {
        const int across = Last ? s.groups.quotient(strip) : strip;
        const int place = across * s.stored + lane / Abreast, before = s.lanes.quotient(place);
        const int output = (place - before * s.lanes.divisor) * Across, column = output / Stride;
        const int input = output - Shift - inner().pad_begin;
        // Not &&: branches cost the compiler more time.
        const bool taken = before < s.planes, there = taken & within(input, inner().size);
        const int plane = taken ? before : 0, most = inner().out.divisor - column;
        const int result = (plane * outer().out.divisor + first) * row_of_results();
        if constexpr (Last) {
            const int group = strip - across * s.groups.divisor;
            const int channel = (group * Abreast + lane % Abreast) * beside;
            x += unsigned(plane) * w.batch_step + (input * inner().step + channel);
            y += result + column * w.channels.divisor + channel;
        } else {
            int image = plane;
            const int channel = Images ? split(image, w.channels) : image;
            x += unsigned(channel) * w.channel_step + input;
            if constexpr (Images) x += unsigned(image) * w.batch_step;
            y += result + column;
        }
        const bool stored = taken & (lane / Abreast < s.stored) & (column * Stride == output);
        return with_counts({there ? x : nowhere(), there ? outer().step : 0, there ? inner().step : 0, y,
                            stored ? least(most, Taken) * (Many / Taken * halves) : 0, output});
    }
    __device__ Columns with_counts(Columns columns) const {
        if constexpr (Op::counts) {
#pragma unroll
            for (int c = 0; c < Taken; ++c) columns.along[c] = counted(inner(), columns.output + c * Stride);
        }
        return columns;
    }
    __device__ static const T* nowhere() { return reinterpret_cast<const T*>(nothing_there<Op>); }
    __device__ int row_of_results() const { return inner().out.divisor * (Last ? w.channels.divisor : 1); }

    // The run of rows, of each of which units of the lanes lie side by side.
    __device__ Shared<Value> kept(int row, int v) const {
        return run + (row * Vector + v / Unit * Unit) * warp + v % Unit;
    }
    __device__ Values get(int row) const {
        Values values;
#pragma unroll
        for (int v = 0; v < Vector; v += Unit)
            load_shared<16>(kept(row, v), reinterpret_cast<unsigned*>(values.element + v));
        return values;
    }
    __device__ void put(int row, const Values& values) const {
#pragma unroll
        for (int v = 0; v < Vector; v += Unit)
            store_shared<16>(kept(row, v), reinterpret_cast<const unsigned*>(values.element + v));
    }

    // Of rows that are not there maxima read the nearest one, which is in all windows that they are in.
    __device__ Row read(int row) const {
        const bool there = Op::repeats || within(row, outer().size);
        if (Op::repeats) row = most(least(row, outer().size - 1), 0);
        Row read;
        load_row(own, there, row, read.own);
        if constexpr (twins) load_row(twin, there, row, read.twin);
        return read;
    }
    __device__ void load_row(const Columns& columns, bool there, int row, unsigned* word) const {
        const T* const from = there ? columns.from + row * columns.step : nowhere();
        if constexpr (Pixels < 2) {
            load_words<bytes>(from, word);
        } else {
            constexpr int each = bytes / Pixels;
            const int apart = there ? columns.apart : 0;
#pragma unroll
            for (int p = 0; p < Pixels; ++p) {
                unsigned part[most(each / 4, 1)];
                load_words<each>(from + p * apart, part);
                if constexpr (each < 4) word[p / 2] = p % 2 ? __byte_perm(word[p / 2], part[0], 0x5410) : part[0];
                else memcpy(word + p * each / 4, part, each);
            }
        }
    }
    __device__ static Values values(const Row& row) {
        Values values;
#pragma unroll
        for (int v = 0; v < Vector; ++v) {
            if constexpr (twins) values.element[v] = Halves<T>::beside(row.own, row.twin, v);
            else if constexpr (Op::pairs) values.element[v] = Halves<T>::pair(row.own, 2 * v);
            else values.element[v] = Words<T>::value(row.own, v);
        }
        return values;
    }

    // Asks for a row that is read later: so few warps that read one ahead would wait for memory. Lanes that
    // have no columns would all ask for the same place. Pixels gain nothing, and maxima of doubles have no
    // registers left.
    static constexpr bool brings = !Last && !(Op::repeats && sizeof(Value) == sizeof(double));
    __device__ void bring(int row) const {
        if (!brings) return;
        row = most(least(row, outer().size - 1), 0);
        bring(own, row);
        if constexpr (twins) bring(twin, row);
    }
    __device__ static void bring(const Columns& columns, int row) {
        if (columns.step != 0) prefetch(columns.from + row * columns.step);
    }

    // From each of its rows on to its end, and what follows in all windows.
    __device__ void reduce_run(Values a) const {
#pragma unroll 1
        for (int i = s.run - 1; i >= 0; --i) {
            merged.accumulate(a, get(i));
            put(i, a);
        }
    }
    // The same of rows that are not kept. The last one may be the first of what follows.
    __device__ void reduce_again(int first, Values a) const {
        int i = s.run - 1;
        if (!Op::repeats && 2 * s.run > outer().kernel) put(i--, a);
        Row row = read(first + i);
#pragma unroll 1
        for (; i >= 0; --i) {
            const Row next = read(first + i - 1);
            merged.accumulate(a, values(row));
            put(i, a);
            row = next;
        }
    }
    // The windows, if any, that begin in the run before row `next`, each of one row more of those from there
    // on. The first one has been read, and one behind the last is. Returns what they come to.
    __device__ Values end_windows(Row& row, int next, int end, bool any, bool again) {
        Values a = merged.template nothing<Vector>();
#pragma unroll 1
        for (int i = 0; i < end - next; ++i) {
            const Row further = pinned(read(next + i + 1));
            bring(next + i + ahead);
            if (any) {
                if (Stride == 1 || wait == 0) {
                    Values window = get(i);
                    merged.merge(window, a);
                    store(i, along(window), next + i - outer().kernel + outer().pad_begin, again);
                    wait = Stride > 1 ? s.stride.divisor : 0;
                }
                --wait;
            }
            const Values below = values(row);
            if (!Reread) put(i, below);
            merged.accumulate(a, below);
            row = further;
        }
        return a;
    }
    // Where a run is half a window, what follows it is in all windows that begin in it, too.
    __device__ void walk(bool again) {
        const int kernel = outer().kernel;
        int next = top - outer().pad_begin + kernel - s.run;
        const int rows = Stride > 1 ? (outer().out.divisor - 1) * s.stride.divisor + 1 : outer().out.divisor;
        const int end = next + s.run + least(s.height, rows - top);
        wait = Stride > 1 ? first * s.stride.divisor - top : 0;
        Row row = read(next);
        Values following = merged.template nothing<Vector>();
        bool any = false;
#pragma unroll 1
        for (; next < end; next += s.run) {
            if (any && Reread) reduce_again(next - kernel, following);
            else if (any) reduce_run(following);
            const Values a = end_windows(row, next, least(next + s.run, end), any, again);
            if (Reread) following = a;
            any = true;
        }
    }

    // Keeps the compiler from reading where it is used, which is late.
    __device__ static Row pinned(Row row) {
#ifdef __CUDA_ARCH__
#pragma unroll
        for (int i = 0; i < words; ++i) {
            asm volatile("" : "+r"(row.own[i]));
            if constexpr (twins) asm volatile("" : "+r"(row.twin[i]));
        }
#endif
        return row;
    }

    __device__ static Value of_lane(int behind, Value value) {
        return behind ? __shfl_down_sync(0xffffffff, value, behind * Abreast) : value;
    }

    // The windows along a row, from the first one that begins in the lane's outputs on.
    __device__ Results along(const Values& values) const {
        if constexpr (Deep == 1) return along_row(values);
        else return along_channels(values);
    }
    __device__ Results along_channels(const Values& values) const {
        Results results;
#pragma unroll
        for (int d = 0; d < Deep; ++d) {
            if constexpr (Across == 1) {
                results.element[d] = of_lanes<Width>(values.element[d], 0);
            } else {
                Pack<Value, Across> row;
#pragma unroll
                for (int c = 0; c < Across; ++c) row.element[c] = values.element[c * Deep + d];
                const Pack<Value, Taken> windows = along_row(row);
#pragma unroll
                for (int c = 0; c < Taken; ++c) results.element[c * Deep + d] = windows.element[c];
            }
        }
        return results;
    }
    __device__ Pack<Value, Taken> along_row(const Pack<Value, Across>& column) const {
        Pack<Value, Across> prefix = column, suffix = column;
#pragma unroll
        for (int v = 1; v < Across; ++v)
            prefix.element[v] = merged.merge(prefix.element[v - 1], column.element[v]);
#pragma unroll
        for (int v = Across - 2; v > 0; --v)
            suffix.element[v] = merged.merge(column.element[v], suffix.element[v + 1]);
        const Value all = suffix.element[0] = prefix.element[Across - 1];
        constexpr int fewest = most(Width - Across - 1, 0) / Across;
        const Value few = of_lanes<fewest>(all, 1);
        Pack<Value, Taken> results;
#pragma unroll
        for (int i = 0; i < Taken; ++i) {
            const int place = i * Stride + Shift, v = place % Across;
            const int rest = Width - Across + v, lanes = most(rest - 1, 0) / Across;
            Value window = rest < 0 ? inside(column, v) : suffix.element[v];
            if (fewest > 0) window = merged.merge(window, few);
            if (lanes > fewest) window = merged.merge(window, of_lane(lanes, all));
            if (rest > 0)
                window = merged.merge(window, of_lane(lanes + 1, prefix.element[rest - lanes * Across - 1]));
            results.element[i] = place < Across ? window : of_lane(1, window);
        }
        return results;
    }
    // A window that ends in the lane, too.
    __device__ Value inside(const Pack<Value, Across>& column, int first) const {
        Value window = column.element[first];
#pragma unroll
        for (int t = 1; t < Width; ++t) window = merged.merge(window, column.element[(first + t) % Across]);
        return window;
    }
    // What so many lanes have, from the one so far behind on, by lengths doubled: those that the number is
    // the sum of or, where those are more than two, the longest one twice.
    template <int Lanes> __device__ Value of_lanes(Value all, int behind) const {
        constexpr int lower = Lanes & (Lanes - 1);
        constexpr bool overlaps = Op::repeats && (lower & (lower - 1));
        Value result = all;
        int done = 0;
#pragma unroll
        for (int length = 1; length <= Lanes; length *= 2) {
            const bool longest = 2 * length > Lanes;
            if (overlaps ? longest : Lanes & length) {
                const Value part = of_lane(behind + done, all);
                result = done ? merged.merge(result, part) : part;
                done += length;
            }
            if (overlaps && longest) result = merged.merge(result, of_lane(behind + Lanes - length, all));
            if (!longest) all = merged.merge(all, of_lane(length, all));
        }
        return result;
    }

    // Results of a row of outputs, whose windows are in place i of the run.
    __device__ void store(int i, const Results& windows, int row, bool again) {
        if constexpr (Op::pairs && !Op::counts) {
            store_maxima(windows);
        } else if (!Op::exact && ::pinned(int{again})) {
            if constexpr (!Op::exact) store_again(i, windows, row);
        } else {
            const float down = Op::counts ? ::pinned(float(counted(outer(), row))) : 1;
            store_finished(windows, own, down, 0);
            if constexpr (twins) store_finished(windows, twin, down, 1);
        }
        own.to += row_of_results();
        if constexpr (twins) twin.to += row_of_results();
    }
    __device__ void store_maxima(const Results& windows) const {
        if constexpr (twins) {
            store_halves<Store>(windows, false, own.to, own.results);
            store_halves<Store>(windows, true, twin.to, twin.results);
        } else {
#pragma unroll
            for (int v = 0; v < Many; v += Deep)
                store_pairs<Store>(reinterpret_cast<const Pack<Value, Deep>&>(windows.element[v]),
                                   own.to + place(2 * v), own.results - 2 * v);
        }
    }
    __device__ void store_finished(const Results& windows, const Columns& columns, float down, int half) {
        Pack<Out, Many * halves> results;
#pragma unroll
        for (int e = 0; e < Many * halves; ++e) {
            const Value window = windows.element[e / halves];
            results.element[e] = finished(window, half + e % halves, columns.along[e / halves / Deep], down);
            if (e < columns.results) merged.watch(window);
        }
        if (merged.doubted()) {
#pragma unroll
            for (int e = 0; e < Many * halves; ++e)
                results.element[e] = merged.of_any(windows.element[e / halves], results.element[e]);
        }
#pragma unroll
        for (int e = 0; e < Many * halves; e += beside)
            store_parts<Store>(reinterpret_cast<const Pack<Out, beside>&>(results.element[e]),
                               columns.to + place(e), columns.results - e);
    }
    // Where such a result of a row is, from the first one of the lane on.
    __device__ int place(int e) const { return e / beside * (Last ? w.channels.divisor : 0) + e % beside; }
    __device__ Out finished(Value window, int half, float along, float down) const {
        if constexpr (!Op::counts) {
            return merged.finish(window, 1);
        } else if constexpr (!Op::pairs) {
            return merged.finish(window, Count(along * down));
        } else {  // where padding is a tap of 0
            return merged.finish(merged.apart(window, half, Width * outer().kernel), Count(along * down));
        }
    }
    // Of sums that were made again, those that take the places of results.
    __device__ void store_again(int i, const Results& windows, int row) const {
#pragma unroll
        for (int v = 0; v < Many; ++v)
            store_shared<sizeof(Value)>(kept(i, v), reinterpret_cast<const unsigned*>(windows.element + v));
#pragma unroll 1
        for (int v = 0; v < own.results; ++v) {
            const int at = own.output + v / Deep * Stride;
            Value sum;
            load_shared<sizeof(Value)>(kept(i, v), reinterpret_cast<unsigned*>(&sum));
            Out& to = own.to[place(v)];
            const Value limit = Op::counts ? 0 : merged.limit(valid(outer(), row) + valid(inner(), at));
            const float taps = Op::counts ? counted(inner(), at) * counted(outer(), row) : 1;
            if (merged.replaces(to, sum, limit)) to = merged.restored(sum, Count(taps));
        }
    }

    // All passes over the strip; words of two strips need one.
    __device__ void reduce() {
        static_assert(!Op::pairs || Merged<Op>::passes == 1);
#pragma unroll 1
        for (int pass = 0; pass < merged.passes; ++pass) {
            if (pass > 0) {
                if (!__any_sync(0xffffffff, merged.wanted(pass))) continue;
                merged.rescale(pass);
            }
            Out* const to = own.to;
            walk(pass > 0);
            own.to = to;
        }
    }
};

template <class Op, int Width, int Store, int Shift, int Stride, bool Reread, int Pixels, int Abreast,
          bool Images>
__global__ void __launch_bounds__(128, 4)
strips(const typename Op::Element* __restrict__ x, typename Op::Out* __restrict__ y,
       const __grid_constant__ Strips s, const __grid_constant__ Window<2, int> w) {
    Strip<Op, Width, Store, Shift, Stride, Reread, Pixels, Abreast, Images>(x, y, s, w).reduce();
}
