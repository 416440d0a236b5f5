// Small planes that adjoin, copied to shared memory as a whole.
#pragma once
#include "shared.cuh"

// Where a vector of 16 bytes lies in shared memory, within the same 128 bytes: planes whose sizes are
// multiples of these would have all their first vectors in the same banks.
__device__ inline int spread(int vector) { return vector ^ ((vector >> 3 ^ vector >> 6) & 7); }

// Copies the planes of a block's outputs, which adjoin, by vectors. Of a whole block each thread copies Each,
// up to `flight` of them on the way at once, and some one more; only others end within a vector.
template <class T, int Threads, int Each, bool Whole, bool Spread>
__device__ inline void stage(const T* from, T* to, unsigned elements, bool whole) {
    constexpr int width = 16 / sizeof(T), flight = 4, turns = most((Each + flight - 1) / flight, 1);
    static_assert(Threads >= width, "one for each element behind the last vector");
    const int vectors = elements / width;
    auto load = [&](int i) { return __ldg(reinterpret_cast<const uint4*>(from) + i); };
    auto store = [&](int i, const uint4& vector) {
        reinterpret_cast<uint4*>(to)[Spread ? spread(i) : i] = vector;
    };
    int i = threadIdx.x;
    if (Whole || whole) {
        const bool more = i < vectors - Each * Threads;
        uint4 last;
        if (more) last = load(Each * Threads + i);
#pragma unroll
        for (int turn = 0; turn < turns; ++turn) {
            const int first = turn * Each / turns, end = (turn + 1) * Each / turns;
            uint4 vector[flight];
#pragma unroll
            for (int v = first; v < end; ++v) vector[v - first] = load(v * Threads + i);
#pragma unroll
            for (int v = first; v < end; ++v) store(v * Threads + i, vector[v - first]);
        }
        if (more) store(Each * Threads + i, last);
    } else if constexpr (!Whole) {
#pragma unroll 1
        for (; i < vectors; i += Threads) store(i, load(i));
        const unsigned single = vectors * width + threadIdx.x;
        if (single < elements) to[single] = from[single];
    }
    __syncthreads();
}

template <unsigned Width> __device__ inline unsigned rounded_up(unsigned elements) {
    return (elements + Width - 1) / Width * Width;
}
// With the rest of a word, by which load_anywhere reads what is in front of it.
template <class T> __device__ inline unsigned in_words(unsigned elements) {
    return rounded_up<most<int>(4 / sizeof(T), 1)>(elements);
}

// Zeros in front of planes and behind them, where parts of rows read what is not there. A barrier follows.
template <int Threads, int Margin, class T> __device__ inline void clear_margins(T* planes, unsigned elements) {
    static_assert(Threads >= 2 * Margin, "one for each element");
    const int i = static_cast<int>(threadIdx.x) - Margin;
    if (i < 0) planes[i] = T{};
    else if (i < Margin) planes[in_words<T>(elements) + i] = T{};
}

// Copies planes that begin anywhere in the first vector, of which each thread has one more at most. Only the
// last block ends within one.
template <class T, int Threads, int Each>
__device__ inline void stage_anywhere(const T* from, T* to, unsigned elements) {
    constexpr int width = 16 / sizeof(T), flight = 4, turns = Each / flight + 1;
    static_assert(Threads >= width, "one for each element behind the last vector");
    const int vectors = elements / width, i = threadIdx.x;
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) {
        const int first = turn * (Each + 1) / turns, end = (turn + 1) * (Each + 1) / turns;
        uint4 vector[flight];
#pragma unroll
        for (int v = first; v < end; ++v)
            if (v * Threads + i < vectors)
                vector[v - first] = __ldg(reinterpret_cast<const uint4*>(from) + v * Threads + i);
#pragma unroll
        for (int v = first; v < end; ++v)
            if (v * Threads + i < vectors) reinterpret_cast<uint4*>(to)[v * Threads + i] = vector[v - first];
    }
    const unsigned single = vectors * width + i;
    if (single < elements) to[single] = from[single];
    else if (single < in_words<T>(elements)) to[single] = T{};
    __syncthreads();
}

// Copies whole blocks of results from shared memory, as `stage` copies planes.
template <class T, int Threads, int Each, bool Spread = false>
__device__ inline void unstage(const T* from, T* to, unsigned elements) {
    const int vectors = elements * sizeof(T) / 16, i = threadIdx.x;
    auto copy = [&](int i) {
        reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[Spread ? spread(i) : i];
    };
    __syncthreads();
#pragma unroll
    for (int v = 0; v < Each; ++v) copy(v * Threads + i);
    if (i < vectors - Each * Threads) copy(Each * Threads + i);
}

// Copies others, but for the first `skew` elements, which are another block's. What is spread is whole vectors.
template <class T, int Threads, int Each, bool Spread = false>
__device__ inline void unstage_anywhere(const T* from, T* to, unsigned skew, unsigned elements) {
    constexpr int width = 16 / sizeof(T);
    static_assert(Threads >= 2 * width, "one for each element of two vectors");
    const int vectors = elements / width, i = threadIdx.x, front = skew > 0;
    __syncthreads();
#pragma unroll
    for (int v = 0; v <= Each; ++v) {
        const int at = v * Threads + i;
        if (at >= front && at < vectors)
            reinterpret_cast<uint4*>(to)[at] = reinterpret_cast<const uint4*>(from)[Spread ? spread(at) : at];
    }
    // Threads of two vectors: what is in front of the first whole one, and behind the last.
    const unsigned single = i < width ? i : (most(vectors, front) - 1) * width + i;
    const bool own = i < width ? front && single >= skew : i < 2 * width;
    if (own && single < elements) to[single] = from[single];
}

// Reads Bytes that begin at any element: by the words that have some of them, shifted to where they belong.
// What is behind them in the last word is anything.
template <int Bytes, class T> __device__ inline void load_anywhere(const Shared<T>& from, unsigned* word) {
    static_assert(sizeof(T) < 4, "others begin with a word");
    constexpr int words = (Bytes + 3) / 4, loads = (Bytes + 4 - int(sizeof(T)) + 3) / 4;
    const int behind = (from.address + Bytes - 1) & ~3;
    Shared<unsigned> at{from.address & ~3};
    unsigned found[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i, at.address += 4) {
        if (i == words) at.address = least(at.address, behind);
        load_shared<4>(at, found + i);
    }
    const unsigned selector = 0x3210 + 0x1111 * (from.address & 3);
#pragma unroll
    for (int i = 0; i < words; ++i)
        word[i] = __byte_perm(found[i], found[least(i + 1, loads - 1)], selector);
}

// Writes elements that begin anywhere: by the words that are all theirs, and what is in front of the first one and
// behind the last one singly.
template <int Many, class T> __device__ inline void store_anywhere(const T* elements, T* to) {
    constexpr int width = 4 / sizeof(T), words = Many / width;
    static_assert(width > 1 && words > 0, "some words may be theirs");
    const int front = -Shared<T>(to).address / int(sizeof(T)) & (width - 1);
    const unsigned selector = 0x3210 + 0x1111 * (front * sizeof(T));
    unsigned word[words + 1] = {};
    memcpy(word, elements, sizeof(T) * Many);
#pragma unroll
    for (int i = 0; i < words; ++i)
        if (i < words - 1 || front <= Many % width)
            reinterpret_cast<unsigned*>(to + front)[i] = __byte_perm(word[i], word[i + 1], selector);
#pragma unroll
    for (int i = 0; i < width - 1; ++i) {
        if (i < front) to[i] = elements[i];
        if (i < ((Many - front) & (width - 1))) to[Many - 1 - i] = elements[Many - 1 - i];
    }
}
