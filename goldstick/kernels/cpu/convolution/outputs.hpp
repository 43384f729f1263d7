// What sums of products become: y = sum · (weight scale · scale) + bias.
#pragma once

#include <cstdint>

#include "convolution/convolution.hpp"
#include "convolution/transpose.hpp"

namespace goldstick {
namespace {

// Sums of 16 channels and some pixels of one image.
struct Sums {
    std::int64_t image, pixel, count;
    std::int64_t channel, channels;
    float scale;  // of the image
    const float* values;  // [count][kRows]
};

template <bool wide, typename T>
GOLDSTICK_INLINE void write(const ConvolutionCall<T>& call, std::int64_t out, std::int64_t pixels, const Sums& sums) {
    float by[kRows], shift[kRows];
    for (std::int64_t r = 0; r < sums.channels; ++r) {
        by[r] = to_float(call.scale[sums.channel + r]) * sums.scale;
        shift[r] = call.bias ? to_float(call.bias[sums.channel + r]) : 0.0f;
    }
    const float* values = sums.values;
    if (call.channels_last) {
        T* GOLDSTICK_RESTRICT y = call.y + (sums.image * pixels + sums.pixel) * out + sums.channel;
        for (std::int64_t t = 0; t < sums.count; ++t, y += out, values += kRows) {
            if (sums.channels == kRows) {
                for (std::int64_t r = 0; r < kRows; ++r) store(y + r, round_to<T>(values[r] * by[r] + shift[r]));
            } else {
                for (std::int64_t r = 0; r < sums.channels; ++r) store(y + r, round_to<T>(values[r] * by[r] + shift[r]));
            }
        }
        return;
    }
    alignas(64) float turned[kRows * kConvolutionPixels];
    turn<wide>(values, kRows, wide ? (sums.count + 7) / 8 * 8 : sums.count, kRows, turned, kConvolutionPixels);
    const float* row = turned;
    for (std::int64_t r = 0; r < sums.channels; ++r, row += kConvolutionPixels) {
        T* GOLDSTICK_RESTRICT const y = call.y + (sums.image * out + sums.channel + r) * pixels + sums.pixel;
        for (std::int64_t t = 0; t < sums.count; ++t) store(y + t, round_to<T>(row[t] * by[r] + shift[r]));
    }
}

template <typename T>
GOLDSTICK_AVX2 void write_avx2(const ConvolutionCall<T>& call, std::int64_t out, std::int64_t pixels, const Sums& sums) {
    write<true>(call, out, pixels, sums);
}
template <typename T>
void write_scalar(const ConvolutionCall<T>& call, std::int64_t out, std::int64_t pixels, const Sums& sums) {
    write<false>(call, out, pixels, sums);
}

}  // namespace
}  // namespace goldstick
