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
