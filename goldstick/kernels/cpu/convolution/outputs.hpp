// Sums of products to outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "convolution/convolution.hpp"
#include "convolution/finish_avx2.hpp"
#include "convolution/outputs_avx512.hpp"
#include "convolution/past_caches.hpp"
#include "convolution/sums.hpp"
#include "convolution/transpose.hpp"

namespace goldstick {
namespace {

// What the sums of all blocks of channels begin with and become, for an image.
class Factors {
public:
    explicit Factors(const ConvolutionWeight& weight)
        : weight_(weight), by_(weight.shape.blocks() * kRows), shift_(by_.count()), begin_(by_.count()) {
        std::fill_n(by_.data(), by_.count(), 0.0f);
        std::fill_n(shift_.data(), shift_.count(), 0.0f);
        std::fill_n(begin_.data(), begin_.count(), 0);
    }

    // `zero` is what a number of 0 is kept as.
    template <typename T>
    void set(const ConvolutionCall<T>& call, float scale, std::int32_t zero, std::int64_t first, std::int64_t last) {
        const ConvolutionShape& shape = weight_.shape;
        for (std::int64_t block = first; block < last; ++block) {
            const std::int64_t channel = shape.first_channel(block);
            for (std::int64_t r = 0; r < shape.channels_of(block); ++r) {
                by_.data()[block * kRows + r] = to_float(call.scale[channel + r]) * scale;
                shift_.data()[block * kRows + r] = call.bias ? to_float(call.bias[channel + r]) : 0.0f;
            }
            for (std::int64_t r = 0; weight_.together == 4 && r < kRows; ++r) {  // what all bytes are larger than codes
                begin_.data()[block * kRows + r] = -zero * weight_.sums.data()[block * kRows + r];
            }
        }
        least_ = call.least, most_ = call.most, past_caches_ = goes_past_caches(shape, call);
    }

    Finish finish(std::int64_t block) const {
        return {by_.data() + block * kRows, shift_.data() + block * kRows, least_, most_, past_caches_};
    }
    const std::int32_t* begin(std::int64_t block) const { return begin_.data() + block * kRows; }

private:
    const ConvolutionWeight& weight_;
    Buffer<float> by_, shift_;
    Buffer<std::int32_t> begin_;
    float least_ = 0.0f, most_ = 0.0f;
    bool past_caches_ = false;
};

// Channels are neighbours; y is that of the first.
template <typename T>
inline void write_pixels(const Sums& sums, const Finish& finish, std::int64_t out, T* GOLDSTICK_RESTRICT y) {
    const float* values = sums.values;
    for (std::int64_t t = 0; t < sums.count; ++t, y += out, values += kRows) {
        for (std::int64_t r = 0; r < sums.channels; ++r) {
            store(y + r, round_to<T>(finished(values[r], finish.by[r], finish.shift[r], finish.least, finish.most)));
        }
    }
}

#if defined(__x86_64__)

GOLDSTICK_AVX2 inline void write_pixels_avx2(const Sums& sums, const Finish& finish, std::int64_t out, float* y) {
    const WideFinish low_finish(finish, 0), high_finish(finish, 8);
    const std::int64_t rest = sums.channels % 8, whole = sums.channels / 8;
    const bool past_caches = finish.past_caches && whole == 2 && out % kRows == 0 && on_a_line(y);
    const float* values = sums.values;
    for (std::int64_t t = 0; t < sums.count; ++t, y += out, values += kRows) {
        const __m256 low = low_finish(_mm256_load_ps(values)), high = high_finish(_mm256_load_ps(values + 8));
        if (past_caches) {
            _mm256_stream_ps(y, low);
            _mm256_stream_ps(y + 8, high);
            continue;
        }
        if (whole >= 1) _mm256_storeu_ps(y, low);
        if (whole == 2) _mm256_storeu_ps(y + 8, high);
        if (rest) {
            store_some(y + 8 * whole, whole ? high : low, rest);
        }
    }
}

#endif

template <bool wide, typename T>
GOLDSTICK_INLINE void write(const ConvolutionCall<T>& call, const Finish& finish, std::int64_t out, std::int64_t pixels,
                            const Sums& sums) {
    if (call.y_last) {
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
            store(y + t, round_to<T>(finished(row[t], finish.by[r], finish.shift[r], finish.least, finish.most)));
        }
    }
}

template <typename T>
GOLDSTICK_AVX2 void write_avx2(const ConvolutionCall<T>& call, const Finish& finish, std::int64_t out,
                               std::int64_t pixels, const Sums& sums) {
    write<true>(call, finish, out, pixels, sums);
}
// With AVX-512, where tiles do not write floats themselves.
template <typename T>
void write_avx512(const ConvolutionCall<T>& call, const Finish& finish, std::int64_t out, std::int64_t pixels,
                  const Sums& sums) {
#if defined(__x86_64__)
    if constexpr (std::is_same_v<T, float>) {
        if (!call.y_last) {
            float* const y = call.y + (sums.image * out + sums.channel) * pixels + sums.pixel;
            return write_planes_avx512(sums, finish, pixels, y);
        }
    }
#endif
    write_avx2(call, finish, out, pixels, sums);
}
template <typename T>
void write_scalar(const ConvolutionCall<T>& call, const Finish& finish, std::int64_t out, std::int64_t pixels,
                  const Sums& sums) {
    write<false>(call, finish, out, pixels, sums);
}

}  // namespace
}  // namespace goldstick
