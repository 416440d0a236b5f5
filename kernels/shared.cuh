// The shared memory of a block, and what lies in it by 32-bit addresses.
#pragma once
#include "element.cuh"

extern __shared__ __align__(128) unsigned char shared[];

// Reads Bytes of shared memory, as aligned as they are many.
template <int Bytes> __device__ inline void load_shared(const void* from, unsigned* word) {
    if constexpr (Bytes == 1) word[0] = *static_cast<const unsigned char*>(from);
    else if constexpr (Bytes == 2) word[0] = *static_cast<const unsigned short*>(from);
    else memcpy(word, __builtin_assume_aligned(from, least(Bytes, 16)), Bytes);
}

// An element in shared memory, by its address there: one of 32 bits, and of a pointer the compiler would have
// to find out anew for each load which memory it is to.
template <class T> struct Shared {
    int address;

#ifdef __CUDA_ARCH__
    __device__ explicit Shared(const T* p) : address(static_cast<int>(__cvta_generic_to_shared(p))) {}
    __device__ T* pointer() const {
        return static_cast<T*>(__cvta_shared_to_generic(static_cast<unsigned>(address)));
    }
#else
    __device__ explicit Shared(const T* p)
        : address(static_cast<int>(reinterpret_cast<const unsigned char*>(p) - shared)) {}
    __device__ T* pointer() const { return reinterpret_cast<T*>(shared + address); }
#endif
    __device__ explicit Shared(int bytes) : address(bytes) {}
    __device__ Shared operator+(int elements) const {
        return Shared(address + elements * static_cast<int>(sizeof(T)));
    }
    __device__ Shared operator-(int elements) const { return *this + -elements; }
    __device__ T operator[](int i) const { return *(*this + i).pointer(); }
};
template <class T> __device__ inline Shared<T> pinned(Shared<T> from) {
    from.address = pinned(from.address);
    return from;
}

// Volatile, so that none is moved in front of what writes there, or of a barrier behind it.
template <int Bytes, class T> __device__ inline void load_shared(const Shared<T>& from, unsigned* word) {
#ifdef __CUDA_ARCH__
    if constexpr (Bytes == 1) {
        asm volatile("ld.shared.u8 %0, [%1];" : "=r"(word[0]) : "r"(from.address));
    } else if constexpr (Bytes == 2) {
        asm volatile("ld.shared.u16 %0, [%1];" : "=r"(word[0]) : "r"(from.address));
    } else if constexpr (Bytes == 4) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word[0]) : "r"(from.address));
    } else if constexpr (Bytes == 8) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(word[0]), "=r"(word[1]) : "r"(from.address));
    } else if constexpr (Bytes > 8) {
#pragma unroll
        for (int i = 0; i < Bytes / 4; i += 4)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(word[i]), "=r"(word[i + 1]), "=r"(word[i + 2]), "=r"(word[i + 3])
                         : "r"(from.address + 4 * i));
    } else
#endif
        load_shared<Bytes>(from.pointer(), word);
}
template <int Bytes, class T> __device__ inline void store_shared(const Shared<T>& to, const unsigned* word) {
    static_assert(Bytes % 4 == 0, "whole words");
#ifdef __CUDA_ARCH__
    if constexpr (Bytes == 4) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to.address), "r"(word[0]));
    } else if constexpr (Bytes == 8) {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to.address), "r"(word[0]), "r"(word[1]));
    } else {
#pragma unroll
        for (int i = 0; i < Bytes / 4; i += 4)
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                         ::"r"(to.address + 4 * i), "r"(word[i]), "r"(word[i + 1]), "r"(word[i + 2]),
                           "r"(word[i + 3]));
    }
#else
    memcpy(to.pointer(), word, Bytes);
#endif
}
