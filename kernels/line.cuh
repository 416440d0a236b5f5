// One row of the input under a tile of rows.cuh, in registers, and how its cells merge.
#pragma once
#include "window.cuh"

// A halo of so many elements, a body that begins on a vector, and a halo behind it, read by vectors of Load at
// most. They are in cells: elements lifted one by one, or words where the operator merges pairs of them. In a
// halo that no vector fits a word has one element.
template <class Op, bool Pairs, int Left, int Body, int Right, int Load> struct Line {
    using T = typename Op::Element;
    using Merged = typename Held<Op, Pairs>::Type;
    using Cell = typename Merged::Accumulator;
    static constexpr int left = Left, body = Body, right = Right;

    // Elements that one load takes in a halo: as many as divide it.
    __host__ __device__ static constexpr int unit(int elements) {
        int width = Load;
        while (elements % width) width /= 2;
        return width;
    }

    __host__ __device__ static constexpr int in_cell(int halo) {
        return Pairs && unit(halo) > 1 ? 2 : 1;
    }
    static constexpr int in_left = in_cell(left), in_right = in_cell(right);
    static constexpr int body_cell = left / in_left;
    static constexpr int right_cell = body_cell + (Pairs ? (body + 1) / 2 : body);
    static constexpr int cells = right_cell + right / in_right;
    Cell cell[cells];

    // The cell of an element, and the half of the word that it is. Where all are words, one formula
    // takes the compiler less time; one element before them is the lower half of its own.
    static constexpr bool in_words =
        Pairs && (in_left == 2 || left <= 1) && (in_right == 2 || right <= 1);
    static_assert(!Pairs || right == 0 || body % 2 == 0, "a halo behind the body begins a word");
    __device__ static int place(int i) {
        if constexpr (!Pairs) return i;
        if constexpr (in_words) return (i + left % 2) / 2;
        if (i < left) return i / in_left;
        if (i < left + body) return body_cell + (i - left) / 2;
        return right_cell + (i - left - body) / in_right;
    }
    __device__ static int half(int i) {
        if constexpr (in_words) return left % 2 && i == 0 ? 0 : (i + left % 2) % 2;
        if (i < left) return i % in_left;
        if (i < left + body) return (i - left) % 2;
        return (i - left - body) % in_right;
    }
    __device__ void set(const Merged& op, int first, const unsigned* words, int elements) {
        if constexpr (Pairs) {
#pragma unroll
            for (int i = 0; i < elements; i += 2) cell[place(first + i)] = Halves<T>::pair(words, i);
        } else {
#pragma unroll
            for (int i = 0; i < elements; ++i) cell[first + i] = op.lift(Words<T>::value(words, i), 0);
        }
    }
    __device__ void clear(const Merged& op) {
#pragma unroll
        for (int i = 0; i < cells; ++i) cell[i] = op.start();
    }
    __device__ Cell at(int i) const { return cell[place(i)]; }
    // Elements i and k side by side in a word.
    __device__ unsigned pair(int i, int k) const {
        unsigned selector = (half(i) ? 0x32 : 0x10) | (half(k) ? 0x7600 : 0x5400);
        return __byte_perm(at(i), at(k), selector);
    }
};

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
