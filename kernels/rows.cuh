// What rows.cu and rows_staged.cu share: one thread takes an Outputs x Height block of neighbouring outputs,
// kernel, stride and leading pad known.
//
// A thread reads the input rows under its outputs once, by the largest vectors that fit, merges
// them down the columns first, shared between its output rows, and then along each row. Three
// layouts are one code: a pixel is Lanes neighbouring elements, and pixels are neighbours too when
// Packed: channels first (1 lane, packed), interleaved channels such as RGB (3 lanes, packed), and
// channels last (a vector of channels, one load for each pixel). Channels first planes lie evenly, as
// the channels of one image, unless they are those of Images.
//
// Taps of a Dilated kernel lie apart: a thread reads their lines, and packed all pixels between them, and
// neighbours share no merges.
//
// With Indices a tap brings a small code, its place in the lines under the tile. Each line is merged along
// the row first, shared between neighbours, and lines only then downwards: in the order of taps, so that
// the first of equal ones stays without a look at codes. Numbers are made of those at the end, where a
// code in the padding becomes that of the first valid tap.
//
// What the plan proves costs no instruction: of a Row that one thread takes whole the padding is
// left out, and where neither tiles nor windows lie over the edge nothing is tested. Where windows
// alone do, at the ends of a row, and of two axes wherever pixels are apart, maxima read what is nearest
// to the edge in place of padding, unless they are dilated: what is nearest need not be a tap then.
#pragma once
#include "line.cuh"
#include "staged.cuh"

struct Rows {
    int threads;
    Divisor<int> vectors, groups, row_groups;  // channel vectors, column and row groups of a plane
    int pixel_step;                            // elements from one pixel to the next, in x and y
};

// Where in its row a tile may lie over the edge, or windows may count fewer taps for an average.
enum Where { nowhere, at_ends, anywhere };

// The operator of taps that merge in their order only.
template <class Op> struct InOrder { using Type = Op; };
template <class T, class Code, class Index> struct InOrder<ArgMax<T, Code, Index>> {
    using Type = FirstMax<T, Code, Index>;
};

template <class Op, class Kernel, class Stride, int Pad, int Row, Where Over, Where Partial,
          int Outputs, int Height, int Lanes, bool Packed, bool Images, int Load, int Store, bool Staged,
          bool SlicesFirst, int Mirrored>
struct Block {
    using T = typename Op::Element;
    using Out = typename Op::Out;
    using Index = typename Op::Index;
    using Accumulator = typename Op::Accumulator;
    static constexpr bool indexed = Op::indices;
    static constexpr int Axes = Kernel::axes;
    static constexpr int Outer = Axes > 1 ? Axes - 2 : 0;
    static constexpr int K = Kernel::at(Axes - 1), S = Stride::at(Axes - 1);
    static constexpr int KR = Axes > 1 ? Kernel::at(Outer) : 1;
    static constexpr int SR = Axes > 1 ? Stride::at(Outer) : 1;
    static constexpr int D = Kernel::dilation(Axes - 1), DR = Axes > 1 ? Kernel::dilation(Outer) : 1;
    static constexpr int taps = KR * K * (Axes > 2 ? Kernel::at(0) : 1);
    // From the first tap to the last.
    static constexpr int extent = (K - 1) * D + 1, outer_extent = (KR - 1) * DR + 1;
    // Pixels of a row and rows of a slice under the outputs.
    static constexpr int Span = (Outputs - 1) * S + extent, Depth = (Height - 1) * SR + outer_extent;

    static_assert(Pad >= 0, "windows begin in the first pixel or before it");
    static_assert(D == 1 || !Row, "a whole row has the taps of a window side by side");

    // Whether a window has a tap there, from where it begins, and whether one of many neighbours has, from
    // where the first one begins.
    __host__ __device__ static constexpr bool tapped(int place, int kernel, int dilation) {
        return place >= 0 && place % dilation == 0 && place / dilation < kernel;
    }
    __host__ __device__ static constexpr bool tapped(int place, int windows, int kernel, int stride,
                                                     int dilation) {
        for (int i = 0; i < windows; ++i, place -= stride)
            if (tapped(place, kernel, dilation)) return true;
        return false;
    }
    __host__ __device__ static constexpr bool pixel_tapped(int pixel) {
        return D == 1 || tapped(pixel, Outputs, K, S, D);
    }
    __host__ __device__ static constexpr bool line_tapped(int line) {
        return DR == 1 || tapped(line, Height, KR, SR, DR);
    }

    // Pixels of a halo, more than needed where a vector takes them with fewer loads.
    __host__ __device__ static constexpr int loaded(int pixels) {
        int width = 1;
        while (width < Load && width < pixels) width *= 2;
        return Lanes > 1 ? pixels : (pixels + width - 1) / width * width;
    }
    // A line in shared memory that begins anywhere is read as a whole, by words.
    static constexpr bool anywhere_in_shared = Staged && Load > (Row ? Row : Outputs * S);
    // Packed, they are a halo of Pad pixels, a body that begins on a vector, and a halo behind it;
    // of a whole row only the body is there, and no padding.
    static constexpr bool halos = Packed && !Row && !anywhere_in_shared;
    static constexpr int Left = halos ? loaded(Pad) : 0;
    static constexpr int Body = Row ? least(Row, Span - Pad) : halos ? least(Outputs * S, Span - Pad) : Span;
    static constexpr int Before = Row || halos ? Left - Pad : 0;  // where a line begins before the taps
    static constexpr int Right = halos ? loaded(Span - Pad - Body) : 0;
    // Two results in a word: maxima, or sums of bytes, whose windows then have as many taps, padding too.
    static constexpr bool paired_sums = taps <= Op::paired_taps && Axes < 3 && !Row;
    static constexpr bool pairs = (Op::pairs || paired_sums) && Load % 2 == 0;
    static constexpr int width = Packed ? Store : Lanes;  // elements of a store
    static constexpr bool Inside = Over == nowhere;

    using Line = ::Line<Op, pairs, Left * Lanes, Body * Lanes, Right * Lanes, Load>;
    using Merged = typename Line::Merged;

    const Window<Axes, int>& w;
    const Rows& grid;
    const Op op;
    const Merged merged;
    using From = typename Either<Staged, Shared<T>, const T*>::Type;
    From x;  // a line's first element, or the body's, in the first row of the plane
    int vector = 0, group, row_group = 0, slice = 0, plane;  // of the results
    long long numbered = 0;  // the first number of the plane, of Indices

    // `input` begins with plane `first`, the results with plane `first_result`.
    __device__ Block(const Window<Axes, int>& window, const Rows& rows, From input, int n, int first,
                     int first_result)
        : w(window), grid(rows), op(window.norm), merged(window.norm), x(input) {
        if constexpr (!Packed) vector = split(n, grid.vectors);
        group = Row ? 0 : split(n, grid.groups);
        if constexpr (Axes > 2 && SlicesFirst) slice = split(n, w.axis[0].out);
        if constexpr (Axes > 1) row_group = split(n, grid.row_groups);
        if constexpr (Axes > 2 && !SlicesFirst) slice = split(n, w.axis[0].out);
        plane = n - first_result;
        long long offset = 0;
        if constexpr (Packed && Lanes == 1) {
            unsigned channel = Images ? split(n, w.channels) : n;
            offset = (channel - first) * w.channel_step;
            numbered = channel * w.index_channel_step;
        }
        if constexpr (Images) {
            offset += static_cast<unsigned>(n) * w.batch_step;
            numbered += n * w.index_batch_step;
        }
        offset += Packed ? origin() * Lanes : vector * Lanes + origin() * grid.pixel_step;
        x = pinned(x + offset);
    }

    __device__ const Axis<int>& inner() const { return w.axis[Axes - 1]; }
    __device__ int size() const { return Row ? Row : inner().size; }
    __device__ int outputs() const { return Row ? Outputs : inner().out.divisor; }
    __device__ const Axis<int>& outer() const { return w.axis[Outer]; }
    __device__ int row_step() const { return Staged && Row ? Row : outer().step; }
    // Mirrored threads go from the last line, and the last row of outputs, which must be there, to the first.
    static_assert(!Mirrored || Axes > 1, "rows of one axis have a line each");
    static_assert(!Mirrored || !Op::indices, "codes tell lines by their order");
    __device__ static bool upwards() { return (threadIdx.x & Mirrored) != 0; }
    __device__ static int down() { return upwards() ? -1 : 1; }
    __device__ static int row_of(int r) { return upwards() ? Height - 1 - r : r; }
    __device__ int first_pixel() const { return group * Outputs * S - Pad; }
    __device__ int origin() const { return Row || halos ? group * Outputs * S : first_pixel(); }
    __device__ int first_row() const {
        return Axes > 1 ? row_group * Height * SR - outer().pad_begin : 0;
    }
    __device__ int first_slice() const {
        return Axes > 2 ? slice * Stride::at(0) - w.axis[0].pad_begin : 0;
    }

    // For a maximum the nearest row, which its windows read too, does for one in the padding, and the
    // nearest vector of a row for a halo, or pixel. Of dilated windows they may lie between taps.
    static constexpr bool steps = Axes > 1, nearest = steps && !Inside && Op::repeats && DR == 1;
    // Pixels apart are clamped once each, for all lines: for one line it takes more instructions, and of three
    // axes more registers.
    static constexpr bool clamps = Over == at_ends || (!Packed && Axes == 2 && nearest && D == 1);
    // Some other row is read in place of one that is not there, of those in shared memory also where it
    // does not do for it.
    static constexpr bool near_rows = nearest || (Staged && steps && !Inside);
    static_assert(Over != at_ends || (Op::repeats && !Op::indices && Packed && Lanes == 1 && !Row),
                  "a maximum of rows, of which no code tells the column");
    static_assert(!clamps || D == 1, "what is nearest to the edge is a tap of all windows over it");
    // All that a tile asks for is there.
    static constexpr bool complete = Inside || ((Row || clamps) && (nearest || !steps));

    // Where a row is read: its body, and the halos that are not beside it where they are clamped.
    struct Parts {
        From body, left, right;

        __device__ Parts at(int offset) const { return {body + offset, left + offset, right + offset}; }
    };
    __device__ Parts parts() const {
        Parts parts{x, x - Line::left, x + Line::body};
        if constexpr (clamps && Left > 0) parts.left = pinned(x + nearest_pixel(-Left, Left));
        if constexpr (clamps && Right > 0) parts.right = pinned(x + nearest_pixel(Body, Right));
        return parts;
    }
    // Where so many pixels begin that are in the row, as near to `pixel` of the body as they may.
    __device__ int nearest_pixel(int pixel, int many) const {
        return most(least(origin() + pixel, size() - many), 0) - origin();
    }

    // Reads Count elements from element `first` of a line on, so many of which are the line's, or padding
    // where they are not `readable`. Words that are cells in place: a copy costs the compiler more time.
    template <int Count>
    __device__ void load_part(Line& line, int first, From from, bool readable, int elements) const {
        constexpr int bytes = Count * sizeof(T);
        if constexpr (pairs && sizeof(T) == 2 && (Count < Load || Line::body % Load == 0)) {
            read<bytes>(from, readable, line.cell + Line::place(first));
        } else {
            Pack<unsigned, most(bytes / 4, 1)> words;
            read<bytes>(from, readable, words.element);
            line.set(merged, first, words.element, elements);
        }
    }
    template <int Bytes> __device__ void read(From from, bool readable, unsigned* word) const {
        if constexpr (Staged) read_staged<Bytes>(from, readable, word);
        else if constexpr (complete) load_words<Bytes>(from, word);
        else load_words_or<Bytes>(merged.padding(), readable, from, word);
    }

    template <int Bytes> __device__ void read_staged(From from, bool readable, unsigned* word) const {
        constexpr int bytes = anywhere_in_shared ? Body * sizeof(T) : Bytes;
        if constexpr (anywhere_in_shared) load_anywhere<bytes>(from, word);
        else load_shared<Bytes>(from, word);
        if constexpr (!complete) {
#pragma unroll
            for (int i = 0; i < (bytes + 3) / 4; ++i) {
                const unsigned padding = repeated(merged.padding(), i);
                if constexpr (anywhere_in_shared && !Row) {
                    const unsigned there = bits_in_row(i);
                    word[i] = (word[i] & there) | (padding & ~there);
                }
                word[i] = readable ? word[i] : padding;
            }
        }
    }
    // The bits of a word that are pixels of the row: as far as the last window begins only padding is not.
    __device__ unsigned bits_in_row(int word) const {
        constexpr int many = 4 / sizeof(T), bits = 8 * sizeof(T);
        unsigned found = ~0u;
#pragma unroll
        for (int i = 0; i < many; ++i) {
            const int pixel = word * many + i;
            const bool certain = pixel >= Span || (pixel >= Pad && pixel <= (Outputs - 1) * S);
            if (!certain && !within(first_pixel() + pixel, size()))
                found &= ~(((1u << bits) - 1) << (i * bits));
        }
        return found;
    }

    // Elements First .. First + Size of a line, the first of which is pixel `pixel` of the body.
    template <int First, int Size>
    __device__ void load_halo(Line& line, From from, bool readable, int pixel) const {
        if constexpr (Size > 0) {
            constexpr int width = Line::unit(Size);
#pragma unroll
            for (int i = 0; i < Size; i += width) {
                int position = group * Outputs * S + pixel + i / Lanes;
                bool inside = within(position, size());
                load_part<width>(line, First + i, from + i, readable && inside, width);
            }
        }
    }

    __device__ void load_line(Line& line, const Parts& parts, bool readable) const {
        From from = parts.body;
        if constexpr (Packed) {
            load_halo<0, Line::left>(line, clamps ? parts.left : from - Line::left, readable, -Left);
            int beyond = (size() - group * Outputs * S) * Lanes;
#pragma unroll
            for (int b = 0; b < Line::body; b += Load) {
                const int elements = least(Load, Line::body - b);
                const bool there = anywhere_in_shared || b < beyond;
                load_part<Load>(line, Line::left + b, from + b, readable && there, elements);
            }
            load_halo<Line::left + Line::body, Line::right>(
                line, clamps ? parts.right : from + Line::body, readable, Body);
        } else {
            // Pixels that no tap reads are merged down the columns, too.
            if constexpr (D > 1 && !Op::indices) line.clear(merged);
            if constexpr (clamps) from = pinned(from);  // or each address would be made from the plane's
#pragma unroll
            for (int i = 0; i < Span; ++i) {
                if (!pixel_tapped(i)) continue;
                const int pixel = clamps ? nearest_pixel(i, 1) : i;
                const bool there = readable && within(first_pixel() + i, size());
                load_part<Lanes>(line, i * Lanes, from + pixel * grid.pixel_step, there, Lanes);
            }
        }
    }

    // What the windows of a row are along it: sums, or with Indices the greatest taps.
    struct Sums {
        static constexpr int cells = Outputs * Lanes;
        Accumulator cell[cells];
    };

    // What is merged downwards: lines, or with Indices what windows are along them.
    using Layer = typename Either<Op::indices, Sums, Line>::Type;
    struct Columns {
        Layer row[Height];
    };

    // The code of a tap: (slice, line, pixel) from where the tile's windows begin, as digits.
    static constexpr int digit = 1024, slices = Axes > 2 ? Kernel::at(0) * Kernel::dilation(0) : 1;
    static_assert(!Op::indices || (Span <= digit && Depth <= digit && slices <= digit), "each is a digit");
    __device__ static constexpr int code(int slice, int line, int pixel) {
        return (slice * digit + line) * digit + pixel;
    }

    __device__ void load_layer(Line& line, const Parts& from, bool readable, int, int) const {
        load_line(line, from, readable);
    }
    __device__ void load_layer(Sums& windows, const Parts& from, bool readable, int t, int i) const {
        Line line;
        load_line(line, from, readable);
#pragma unroll
        for (int c = 0; c < Line::cells; ++c) line.cell[c].code = code(t, i, c / Lanes - Before);
        reduce_row(line, windows);
    }

    // Hands the input rows of slice t under the tile, in their order, to every output row above them.
    __device__ void load_slice(Columns& columns, Parts from, int t) const {
        Layer layers[Depth];
        int row = first_row() + (upwards() ? Depth - 1 : 0);
        // Pinned: all addresses would be made anew. Of three axes ptxas spills for it on some cards.
        auto next = [](From body) { return Axes < 3 ? pinned(body) : body; };
        if constexpr (steps && !near_rows) from.body = next(from.body + row * row_step());
#pragma unroll
        for (int i = 0; i < Depth; ++i, row += down()) {
            Parts at = from;
            if constexpr (near_rows) at = from.at(most(least(row, outer().size - 1), 0) * row_step());
            const bool readable = !steps || nearest || within(row, outer().size);
            if (line_tapped(i)) load_layer(layers[i], at, readable, t, i);
            if constexpr (steps && !near_rows) from.body = next(from.body + down() * row_step());
            if constexpr (Together == 1) take(columns, layers[i], i);
        }
        if constexpr (Together > 1) take_together(columns, layers);
    }

    __device__ void load(Columns& columns) const {
        const Parts all = parts();
        if constexpr (Axes < 3) {
            load_slice(columns, all, 0);
        } else {
#pragma unroll 1
            for (int t = 0; t < Kernel::at(0); ++t) {
                const int from = t * Kernel::dilation(0), position = first_slice() + from;
                if (Inside || within(position, w.axis[0].size))
                    load_slice(columns, all.at(position * w.axis[0].step), from);
            }
        }
    }

    // Rows of outputs that take what their windows share merged once, and those of neighbours.
    __host__ __device__ static constexpr int together(int kernel, int stride, int outputs) {
        if (kernel > stride + 3) return least(outputs, (kernel - 1) / stride + 1);
        return kernel > stride + 1 ? least(outputs, 2) : 1;
    }

    // Rows of outputs: what their windows are down the columns.
    static constexpr int Together = Axes == 2 && DR == 1 ? together(KR, SR, Height) : 1;
    __device__ void start(Columns& columns) const {
        if constexpr (Axes > 2) {
#pragma unroll
            for (int r = 0; r < Height; ++r) clear(columns.row[r], r);
        }
    }
    __device__ void clear(Line& line, int) const { line.clear(merged); }
    __device__ void clear(Sums& windows, int r) const {
#pragma unroll
        for (int b = 0; b < Sums::cells; ++b)
            windows.cell[b] = op.lift(lowest<T>(), code(0, r * SR, b / Lanes * S));
    }
    __device__ void take(Columns& columns, const Layer& layer, int i) const {
#pragma unroll
        for (int r = 0; r < Height; ++r) {
            const int tap = i - r * SR;
            if (!tapped(tap, KR, DR)) continue;
#pragma unroll
            for (int c = 0; c < Layer::cells; ++c) {
                auto& cell = columns.row[r].cell[c];
                cell = Axes < 3 && tap == 0 ? layer.cell[c] : merged.merge(cell, layer.cell[c]);
            }
        }
    }
    __device__ void take_together(Columns& columns, const Layer* layers) const {
        constexpr int rest = Height % Together, last = Height - rest;
#pragma unroll
        for (int r = 0; r < last; r += Together) merge_rows<Together>(layers + r * SR, columns.row + r);
        if constexpr (rest > 0) merge_rows<rest>(layers + last * SR, columns.row + last);
    }
    template <int Many> __device__ void merge_rows(const Layer* layers, Layer* row) const {
#pragma unroll
        for (int c = 0; c < Layer::cells; ++c)
            merge_windows<KR, SR, Many>(
                merged, [&](int i) { return layers[i].cell[c]; },
                [&](int r, const typename Merged::Accumulator& a) { row[r].cell[c] = a; });
    }

    // From x to the first element of a column of the input.
    __device__ int offset_of(int column) const {
        return (column - origin()) * (Packed ? Lanes : grid.pixel_step);
    }

    // A value of 16 bits is read again: a conversion may change the bits of a NaN.
    __device__ T element(typename Element<T>::Value value, int offset) const {
        if constexpr (sizeof(T) != 2) return Round<T>::from(value);
        return x[offset];
    }

    // By 16 bytes where they are aligned: the plan speaks for x and y alone.
    template <class Index, int Width>
    __device__ static void store_numbers(const Index (&numbers)[Width], Index* to) {
        constexpr int width = least<int>(Width, 16 / sizeof(Index));
        const bool aligned = reinterpret_cast<unsigned long long>(to) % (width * sizeof(Index)) == 0;
#pragma unroll
        for (int i = 0; i < Width; i += width) {
            Pack<Index, width> pack;
#pragma unroll
            for (int j = 0; j < width; ++j) pack.element[j] = numbers[i + j];
            if (aligned) {
                *reinterpret_cast<Pack<Index, width>*>(to + i) = pack;
            } else {
#pragma unroll
                for (int j = 0; j < width; ++j) to[i + j] = pack.element[j];
            }
        }
    }

    // Where a tap lies along an axis. One in the padding in front stands for the first valid one of its window:
    // its row is that one's, or no tap is greater than padding. To ask only where one may lie in front took
    // more instructions.
    template <int A> __device__ static int position(int first, int behind) {
        constexpr int apart = Kernel::dilation(A), beyond = Kernel::at(A) * apart;
        const int tap = first + behind;
        return Inside || tap >= 0 ? tap : unsigned(tap + beyond) % apart;
    }
    __device__ void write_row(const Sums& sums, int r, Out* y, typename Op::Index* indices) const {
        using Index = typename Op::Index;
        int left = (outputs() - group * Outputs) * Lanes, first = place(r, 0);
        // 32 bits hold the numbers of an image. To make them of 64 takes five instructions for a product.
        const auto distance = [](int positions, long long step) {
            return positions * static_cast<int>(step);
        };
#pragma unroll
        for (int b = 0; b < Outputs * Lanes; b += width) {
            if (Over == anywhere && b > 0 && b >= left) return;
            int at = first + (Packed ? b : b / Lanes * grid.pixel_step);
            Pack<Out, width> pack;
            Index numbers[width];
#pragma unroll
            for (int i = 0; i < width; ++i) {
                const int lane = (b + i) % Lanes;
                const unsigned pixel = sums.cell[b + i].code, line = pixel / digit, slice = line / digit;
                const int column = position<Axes - 1>(first_pixel(), pixel % digit);
                int offset = offset_of(column) + lane;
                int number = distance(column, inner().index_step);
                if (!Packed || Lanes > 1)
                    number += distance(vector * Lanes + lane, w.index_channel_step);
                auto add = [&](const Axis<int>& axis, int tap) {
                    offset += tap * axis.step;
                    number += distance(tap, axis.index_step);
                };
                const unsigned row = Axes > 2 ? line % digit : line;
                if constexpr (Axes > 1) add(outer(), position<Outer>(first_row(), row));
                if constexpr (Axes > 2) add(w.axis[0], position<0>(first_slice(), slice));
                pack.element[i] = element(sums.cell[b + i].best, offset);
                numbers[i] = static_cast<Index>(numbered + number);
            }
            *reinterpret_cast<Pack<Out, width>*>(y + at) = pack;
            store_numbers(numbers, indices + at);
        }
    }

    __device__ void write(const Columns& columns, Out* y, typename Op::Index* indices) const {
#pragma unroll
        for (int r = 0; r < Height; ++r)
            if (row_exists(r)) write_row(columns.row[r], r, y, indices);
    }

    // Pixel of a line that tap j of output element b reads, and the taps that are no padding.
    __device__ static constexpr int pixel(int b, int j) { return b / Lanes * S + j * D + Before; }
    __device__ static constexpr int first_tap(int b) { return Row ? most(0, -pixel(b, 0)) : 0; }
    __device__ static constexpr int last_tap(int b) {
        return Row ? least(K, Body - pixel(b, 0)) - 1 : K - 1;
    }
    // Pixel of a line `place` behind the begin of the first window, or a neighbour where it is padding.
    __device__ static int pixel_near(int place) {
        const int p = place + Before;
        return Row ? most(least(p, Body - 1), 0) : p;
    }
    // Element of a line that tap j of output element b reads, or a neighbour where it is padding.
    __device__ static int under(int b, int j) {
        return pixel_near(b / Lanes * S + j * D) * Lanes + b % Lanes;
    }

    // Taps first .. last of output element b, where cells are elements.
    __device__ Accumulator reduce(const Line& columns, int b, int first, int last) const {
        const int from = pixel(b, 0) * Lanes + b % Lanes;
        Accumulator a = columns.cell[from + first * D * Lanes];
#pragma unroll
        for (int j = first + 1; j <= last; ++j) a = op.merge(a, columns.cell[from + j * D * Lanes]);
        return a;
    }

    // Stride 1: neighbouring outputs read neighbouring pixels, which all windows share.
    static constexpr bool slides = pairs && S == 1 && Lanes == 1;
    struct Pairs {
        unsigned from[Span];  // pixels i and i + 1
    };
    __device__ void pair_up(const Line& columns, Pairs& pixels) const {
        constexpr int first = Row ? most(Pad - 1, 0) : 0, end = Row ? Pad + Body : Span;
#pragma unroll
        for (int i = first; i < end; ++i)
            pixels.from[i] = columns.pair(pixel_near(i), pixel_near(least(i + 1, Span - 1)));
    }
    __device__ unsigned reduce_pair(const Pairs& pixels, int b) const {
        const int next = least(b + 1, Outputs - 1), first = first_tap(next);
        unsigned a = pixels.from[b + first * D];
#pragma unroll
        for (int j = first + 1; j <= last_tap(b); ++j) a = op.merge_pairs(a, pixels.from[b + j * D]);
        return a;
    }

    // Output elements b and the next in a word.
    __device__ unsigned reduce_pair(const Line& columns, int b) const {
        const int next = least(b + 1, Outputs * Lanes - 1), first = first_tap(next);
        unsigned a = columns.pair(under(b, first), under(next, first));
#pragma unroll
        for (int j = first + 1; j <= last_tap(b); ++j)
            a = op.merge_pairs(a, columns.pair(under(b, j), under(next, j)));
        return a;
    }

    // Taps along an axis that count for a window that starts at `start`.
    template <int A> __device__ int counted(int start) const {
        const Axis<int>& axis = w.axis[A];
        constexpr int size = Kernel::at(A), dilation = Kernel::dilation(A);
        if constexpr (dilation > 1)
            return most(clip(start, axis.count_begin, axis.count_end, size, dilation).count, 1);
        return most(least(start + size, axis.count_end) - most(start, axis.count_begin), 1);
    }

    // Whether a window may begin before the positions that count, and end behind them.
    __device__ static constexpr bool leads(int output) { return output * S < Pad; }
    __device__ static constexpr bool trails(int output) {
        return Partial == anywhere || (Outputs - 1 - output) * S < Pad;
    }

    // Taps that count along the outer axes and along the row; none count as one.
    __device__ int counted_above(int r) const {
        const int slices = Axes > 2 ? counted<0>(first_slice()) : 1;
        return slices * (Axes > 1 ? counted<Outer>(first_row() + row_of(r) * SR) : 1);
    }
    __device__ int counted_along(int output) const {
        const int start = first_pixel() + output * S;
        const int first = leads(output) ? divide_up(most(inner().count_begin - start, 0), D) : 0;
        const int end = trails(output) ? least(divide_up(inner().count_end - start, D), K) : K;
        return most(end - first, 1);
    }
    // What the averages of a row are divided by, by the taps that count along it.
    struct Whole {
        __device__ auto operator[](int) const { return Exactly<taps>(); }
    };
    __device__ static auto divisors(int above) {
        if constexpr (Partial == nowhere) return Whole();
        else return +share_table<taps / K, K>.of[above];
    }

    __device__ int row_number(int r) const {
        if constexpr (Axes == 1) return plane;
        int outermost = Axes > 2 ? plane * w.axis[0].out.divisor + slice : plane;
        return outermost * outer().out.divisor + row_group * Height + row_of(r);
    }

    __device__ bool row_exists(int r) const {
        return Inside || Axes == 1 || r == 0 || row_group * Height + r < outer().out.divisor;
    }

    // Position in y of the first lane of an output of the block.
    __device__ int place(int r, int output) const {
        int pixel = row_number(r) * outputs() + group * Outputs + output;
        return pixel * (Packed ? Lanes : grid.pixel_step) + vector * Lanes;
    }

    // Stores one row of the block: write(at, b) takes `width` elements from b on.
    template <class Write> __device__ void write_row(Out* to, Write write) const {
        int left = (outputs() - group * Outputs) * Lanes;
#pragma unroll
        for (int b = 0; b < Outputs * Lanes; b += width) {
            if (Over == anywhere && b > 0 && b >= left) return;
            write(Packed ? to + b : to + b / Lanes * grid.pixel_step, b);
        }
    }

    // What gives output elements b and the next in a word.
    struct Reduced {
        const Block& block;
        const Line& columns;
        Pairs pixels;

        __device__ Reduced(const Block& b, const Line& c) : block(b), columns(c) {
            if constexpr (slides) block.pair_up(columns, pixels);
        }
        __device__ unsigned operator()(int b) const {
            if constexpr (slides) return block.reduce_pair(pixels, b);
            else return block.reduce_pair(columns, b);
        }
    };

    __device__ void write_pairs(const Line& columns, Out* to) const {
        unsigned pair = 0;
        const Reduced reduced(*this, columns);
        write_row(to, [&](Out* at, int b) {
            if constexpr (width == 1) {
                if (b % 2 == 0) pair = reduced(b);
                *at = Halves<T>::element(pair, b % 2);
            } else {
                Pack<unsigned, width / 2> words;
#pragma unroll
                for (int i = 0; i < width; i += 2) words.element[i / 2] = reduced(b + i);
                Halves<T>::store(words, at);
            }
        });
    }

    // Outputs along a row together, as rows of outputs are down the columns.
    static constexpr int Along = Row || D > 1 ? 1 : together(K, S, Outputs);

    __device__ void reduce_row(const Line& columns, Sums& sums) const {
        if constexpr (pairs) reduce_row_in_pairs(columns, sums);
        else reduce_row_alone(columns, sums);
    }
    __device__ void reduce_row_in_pairs(const Line& columns, Sums& sums) const {
        const Reduced reduced(*this, columns);
#pragma unroll
        for (int b = 0; b < Outputs * Lanes; b += 2) {
            const unsigned pair = reduced(b);
#pragma unroll
            for (int i = b; i < least(b + 2, Outputs * Lanes); ++i) sums.cell[i] = op.apart(pair, i - b, taps);
        }
    }
    __device__ void reduce_row_alone(const Line& columns, Sums& sums) const {
        if constexpr (Along == 1) {
#pragma unroll
            for (int b = 0; b < Outputs * Lanes; ++b)
                sums.cell[b] = reduce(columns, b, first_tap(b), last_tap(b));
        } else {
            constexpr int rest = Outputs % Along;
#pragma unroll
            for (int first = 0; first < Outputs - rest; first += Along)
                reduce_together<Along>(columns, sums, first);
            if constexpr (rest > 0) reduce_together<rest>(columns, sums, Outputs - rest);
        }
    }
    template <int Many>
    __device__ void reduce_together(const Line& columns, Sums& sums, int first) const {
#pragma unroll
        for (int lane = 0; lane < Lanes; ++lane) {
            const int b = first * Lanes + lane, from = pixel(b, 0) * Lanes + lane;
            merge_windows<K, S, Many>(
                op, [&](int i) { return columns.cell[from + i * Lanes]; },
                [&](int i, const Accumulator& a) { sums.cell[b + i * Lanes] = a; });
        }
    }

    // One bit for each result that is not certain, row by row; where a tile hangs over the edge some
    // are not there.
    static constexpr int in_row = Outputs * Lanes, results = Height * in_row;
    __device__ unsigned doubtful(const Sums (&sums)[Height]) const {
        static_assert(Op::exact || results <= 32, "a bit for each result");
        typename Op::Doubt doubt = 0;
        unsigned found = 0;
#pragma unroll
        for (int i = 0; i < results; ++i)
            doubt = op.doubt(doubt, sums[i / in_row].cell[i % in_row]);
        if (!op.doubtful(doubt)) return 0;
#pragma unroll
        for (int i = 0; i < results; ++i)
            found |= static_cast<unsigned>(!op.certain(sums[i / in_row].cell[i % in_row])) << i;
        return found;
    }

    // Results are finish(a, output).
    template <class Finish>
    __device__ void write_sums(const Sums& sums, Out* to, Finish finish) const {
        write_row(to, [&](Out* at, int b) {
            Pack<Out, width> pack;
#pragma unroll
            for (int i = 0; i < width; ++i) pack.element[i] = finish(sums.cell[b + i], (b + i) / Lanes);
            *reinterpret_cast<Pack<Out, width>*>(at) = pack;
        });
    }

    __device__ void write(const Columns& columns, Out* y) const {
        Out* to = y + place(0, 0);
        const int pitch = down() * outputs() * (Packed ? Lanes : grid.pixel_step);
        if constexpr (pairs && !paired_sums) {
            // Of whole rows ptxas spills a few registers where one pointer goes from row to row.
#pragma unroll
            for (int r = 0; r < Height && row_exists(r); ++r, to += pitch)
                write_pairs(columns.row[r], Row ? y + place(r, 0) : to);
        } else {
            Sums sums[Height];
#pragma unroll
            for (int r = 0; r < Height; ++r) reduce_row(columns.row[r], sums[r]);
            unsigned again = 0;
            if constexpr (!Op::exact) again = doubtful(sums);
            int along[Outputs];
#pragma unroll
            for (int i = 0; i < Outputs; ++i) along[i] = counted_along(i);
#pragma unroll
            for (int r = 0; r < Height && row_exists(r); ++r, to += pitch) {
                const auto divisor = divisors(counted_above(r));
                write_sums(sums[r], to, [&](Accumulator a, int output) {
                    return op.finish(a, divisor[along[output]]);
                });
            }
            if constexpr (!Op::exact)
                if (again) redo(y, again);
        }
    }

    // One output of the block again, tap by tap.
    struct Again {
        const Block& block;
        int row, column, lane;

        template <class Any> __device__ typename Any::Accumulator operator()(const Any& op) const {
            auto a = op.start();
#pragma unroll 1
            for (int t = 0; t < taps; ++t) {
                int column_read = block.first_pixel() + column * S + t % K * D;
                bool inside = within(column_read, block.size());
                int from = block.offset_of(column_read) + lane;
                auto reach = [&](const Axis<int>& axis, int position) {
                    inside = inside && within(position, axis.size);
                    from += position * axis.step;
                };
                if constexpr (Axes > 1)
                    reach(block.outer(), block.first_row() + block.row_of(row) * SR + t / K % KR * DR);
                if constexpr (Axes > 2)
                    reach(block.w.axis[0], block.first_slice() + t / K / KR * Kernel::dilation(0));
                if (inside) a = op.merge(a, op.lift(value(block.x[from]), t));
            }
            return a;
        }
        __device__ bool any(bool wanted) const { return wanted; }
    };

    // The slow path of the outputs whose bits are set, one after the other.
    __device__ void redo(Out* y, unsigned again) const {
        const int left = (outputs() - group * Outputs) * Lanes;
#pragma unroll 1
        for (int i = 0; again != 0; ++i, again >>= 1) {
            const int r = i / in_row, b = i % in_row, output = b / Lanes, lane = b % Lanes;
            const bool exists = Inside || (row_exists(r) && b < left);
            if (again % 2 == 0 || !exists) continue;
            const Again traverse{*this, r, output, lane};
            const auto count = divisors(counted_above(r))[counted_along(output)];
            y[place(r, output) + lane] = op.careful(traverse, count);
        }
    }
};

// Blocks that a multiprocessor should hold at least. Where ptxas is told none, it finds a number
// itself, mostly a better one, and for some kernels spills a few registers to reach it: maxima of 16 bits
// in windows of 2 x 2 x 2 among them, and of staged volumes.
template <class Op, class Kernel, bool Staged> __host__ __device__ constexpr int least_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    if (Op::pairs) return 1;
#elif defined(__CUDA_ARCH__)
    if (Staged && Op::repeats && sizeof(typename Op::Element) < 8 && Kernel::axes == 3)
        return sizeof(typename Op::Element) == 4 ? 5 : 6;
#endif
    if (Op::indices) return sizeof(typename Op::Element) == 8 || Kernel::product > 16 ? 1 : 2;
    if (!Op::repeats) return 2;
    if (sizeof(typename Op::Element) == 2 && Kernel::axes == 3 && Kernel::product == 8) return 3;
    return sizeof(typename Op::Element) == 8 ? 2 : 0;
}

template <class Tile>
__device__ inline void write_tile(const Tile& block, typename Tile::Out* y, typename Tile::Index* indices) {
    typename Tile::Columns columns;
    block.start(columns);
    block.load(columns);
    if constexpr (Tile::indexed) block.write(columns, y, indices);
    else block.write(columns, y);
}
