// What sums of products become: y = sum · (weight scale · scale) + bias.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

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

// What sums are multiplied by, and what is added then.
struct Finish {
    template <typename T>
    Finish(const ConvolutionCall<T>& call, const Sums& sums) {
        for (std::int64_t r = 0; r < sums.channels; ++r) {
            by[r] = to_float(call.scale[sums.channel + r]) * sums.scale;
            shift[r] = call.bias ? to_float(call.bias[sums.channel + r]) : 0.0f;
        }
    }
    alignas(32) float by[kRows] = {};
    alignas(32) float shift[kRows] = {};
};

// Channels are neighbours; y is that of the first.
template <typename T>
inline void write_pixels(const Sums& sums, const Finish& finish, std::int64_t out, T* GOLDSTICK_RESTRICT y) {
    const float* values = sums.values;
    for (std::int64_t t = 0; t < sums.count; ++t, y += out, values += kRows) {
        for (std::int64_t r = 0; r < sums.channels; ++r) {
            store(y + r, round_to<T>(values[r] * finish.by[r] + finish.shift[r]));
        }
    }
}

#if defined(__x86_64__)

GOLDSTICK_AVX2 inline void write_pixels_avx2(const Sums& sums, const Finish& finish, std::int64_t out, float* y) {
    const __m256 by[] = {_mm256_load_ps(finish.by), _mm256_load_ps(finish.by + 8)};
    const __m256 shift[] = {_mm256_load_ps(finish.shift), _mm256_load_ps(finish.shift + 8)};
    const std::int64_t rest = sums.channels % 8, whole = sums.channels / 8;
    const float* values = sums.values;
    for (std::int64_t t = 0; t < sums.count; ++t, y += out, values += kRows) {
        const __m256 low = _mm256_add_ps(_mm256_mul_ps(_mm256_load_ps(values), by[0]), shift[0]);
        const __m256 high = _mm256_add_ps(_mm256_mul_ps(_mm256_load_ps(values + 8), by[1]), shift[1]);
        if (whole >= 1) _mm256_storeu_ps(y, low);
        if (whole == 2) _mm256_storeu_ps(y + 8, high);
        if (rest) {
            alignas(32) float few[8];
            _mm256_store_ps(few, whole ? high : low);
            std::copy_n(few, rest, y + 8 * whole);
        }
    }
}

#endif

template <bool wide, typename T>
GOLDSTICK_INLINE void write(const ConvolutionCall<T>& call, std::int64_t out, std::int64_t pixels, const Sums& sums) {
    const Finish finish(call, sums);
    if (call.channels_last) {
        T* const y = call.y + (sums.image * pixels + sums.pixel) * out + sums.channel;
#if defined(__x86_64__)
        if constexpr (wide && std::is_same_v<T, float>) {
            return write_pixels_avx2(sums, finish, out, y);
        }
#endif
        return write_pixels(sums, finish, out, y);
    }
    alignas(64) float turned[kRows * kConvolutionPixels];
    turn<wide>(sums.values, kRows, wide ? (sums.count + 7) / 8 * 8 : sums.count, kRows, turned, kConvolutionPixels);
    const float* row = turned;
    for (std::int64_t r = 0; r < sums.channels; ++r, row += kConvolutionPixels) {
        T* GOLDSTICK_RESTRICT const y = call.y + (sums.image * out + sums.channel + r) * pixels + sums.pixel;
        for (std::int64_t t = 0; t < sums.count; ++t) {
            store(y + t, round_to<T>(row[t] * finish.by[r] + finish.shift[r]));
        }
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
