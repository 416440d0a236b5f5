// Preprocessing: one thread per output element averages the pixels of its window, exactly, and
// scales and shifts the mean. Each pixel is read for one element and each element written once.
#include "element.cuh"

constexpr int MAX_CHANNELS = 4;

struct Preprocess {
    long long outputs, height, width;
    long long origin;         // first pixel of the crop, in elements of x
    long long step[4];        // elements of x to the next image, row of windows, window and channel
    long long pixel_step[2];  // and to the next row and pixel of a window
    int channels;
    int pool_y, pool_x;
    int reversed;             // whether the channels come out in the opposite order
    int narrow;               // whether sum and count are exact as float32
    float scale;
    float mean[MAX_CHANNELS], deviation[MAX_CHANNELS];
};

template <class Out, class Index, class Sum, bool Planar>
__global__ void __launch_bounds__(256)
preprocess(const unsigned char* __restrict__ x, Out* __restrict__ y,
           const __grid_constant__ Preprocess p) {
    Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= p.outputs) return;
    Index rest = i, channel = 0;
    auto digit = [&rest](Index size) {
        Index quotient = rest / size, remainder = rest - quotient * size;
        rest = quotient;
        return remainder;
    };
    if constexpr (!Planar) channel = digit(p.channels);
    Index column = digit(p.width), row = digit(p.height);
    if constexpr (Planar) channel = digit(p.channels);

    Index from = p.reversed ? p.channels - 1 - channel : channel;
    const unsigned char* window =
        x + p.origin + rest * p.step[0] + row * p.step[1] + column * p.step[2] + from * p.step[3];
    Sum sum = 0;
    for (int a = 0; a < p.pool_y; ++a) {
        for (int b = 0; b < p.pool_x; ++b) sum += window[a * p.pixel_step[0] + b * p.pixel_step[1]];
    }
    long long count = static_cast<long long>(p.pool_y) * p.pool_x;
    float mean = p.narrow ? divide(static_cast<float>(sum), static_cast<float>(count))
                          : narrow(static_cast<double>(sum) / static_cast<double>(count));
    float shifted = add(multiply(mean, p.scale), negative(p.mean[channel]));
    y[i] = Round<Out>::from(divide(shifted, p.deviation[channel]));
}
