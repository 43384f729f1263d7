// Convolutions with AVX-512 VNNI: a vector of sixteen output channels and up to twelve pixels.
#include "convolution/convolution.hpp"
#include "linear/avx512.hpp"

#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

namespace goldstick {
namespace {

constexpr int kTilePixels = 12;  // most pixels whose sums stay in registers

// Add the products of each channel's codes and one pixel's: two of 16 bits, or four of bytes that are not negative.
template <typename Code>
GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i add_pixel(__m512i sum, __m512i codes, const Code* q) {
    std::int32_t together;
    std::memcpy(&together, q, sizeof together);
    const __m512i values = _mm512_set1_epi32(together);
    return sizeof(Code) == 1 ? _mm512_dpbusd_epi32(sum, values, codes) : _mm512_dpwssd_epi32(sum, codes, values);
}

template <typename Code>
GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i codes_at(const std::int8_t* panel) {
    if constexpr (sizeof(Code) == 1) {
        return _mm512_load_si512(panel);
    } else {
        const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel));
        return _mm512_maskz_cvtepi8_epi16(0xffffffff, bytes);
    }
}

// Sums of the pixels from `first` on to outputs.
template <typename Code, int count>
GOLDSTICK_AVX512 GOLDSTICK_INLINE void write(const TileCall<Code>& call, const __m512i (&products)[count],
                                             std::int64_t first) {
    const PixelOutputs& to = *call.outputs;
    const bool all = call.channels == kRows;
    const __mmask16 channels = static_cast<__mmask16>((1u << call.channels) - 1);
    const __m512 by = _mm512_loadu_ps(to.finish.by), shift = _mm512_loadu_ps(to.finish.shift);
    const __m512 least = _mm512_set1_ps(to.finish.least), most = _mm512_set1_ps(to.finish.most);
    float* y = to.y + first * to.step;
    GOLDSTICK_UNROLL
    for (int t = 0; t < count; ++t, y += to.step) {
        const __m512 found = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(products[t]), by), shift);
        const __m512 within = _mm512_min_ps(most, _mm512_max_ps(least, found));
        if (all) {  // a store with a mask takes longer
            _mm512_storeu_ps(y, within);
        } else {
            _mm512_mask_storeu_ps(y, channels, within);
        }
    }
}

// The pixels from `first` on.
template <typename Code, int count>
GOLDSTICK_AVX512 void tile(const TileCall<Code>& call, std::int64_t first) {
    constexpr std::int64_t together = 4 / sizeof(Code);
    const std::int8_t* panel = call.panel;
    const Code* const* const pixels = call.pixels + first;
    const __m512i begin = _mm512_loadu_si512(call.begin);
    __m512i products[count];
    GOLDSTICK_UNROLL
    for (int t = 0; t < count; ++t) {
        products[t] = begin;
    }
    bool first_span = true;
    for (const Run& run : call.runs) {
        const std::int64_t offset = call.group + run.offset, end = offset + together * run.steps;
        for (std::int64_t at = offset; at < end; at += together, panel += together * kRows) {
            const __m512i codes = codes_at<Code>(panel);
            GOLDSTICK_UNROLL
            for (int t = 0; t < count; ++t) {
                products[t] = add_pixel(products[t], codes, pixels[t] + at);
            }
        }
        if (run.closes && call.outputs) {
            return write(call, products, first);
        }
        if (run.closes) {
            GOLDSTICK_UNROLL
            for (int t = 0; t < count; ++t) {
                const __m512 found = _mm512_cvtepi32_ps(products[t]);
                float* const to = call.sums + (first + t) * kRows;
                _mm512_storeu_ps(to, first_span ? found : _mm512_add_ps(_mm512_loadu_ps(to), found));
                products[t] = begin;
            }
            first_span = false;
        }
    }
}

template <typename Code, int... count>
void tiles(const TileCall<Code>& call, std::integer_sequence<int, count...>) {
    static constexpr void (*functions[])(const TileCall<Code>&, std::int64_t) = {tile<Code, count + 1>...};
    const std::int64_t each = evenly(call.count, kTilePixels);
    for (std::int64_t first = 0; first < call.count; first += each) {
        functions[std::min(each, call.count - first) - 1](call, first);
    }
}

}  // namespace

void convolution_tiles_avx512(const TileCall<std::int16_t>& call) {
    tiles(call, std::make_integer_sequence<int, kTilePixels>());
}

void byte_tiles_avx512(const TileCall<std::uint8_t>& call) { tiles(call, std::make_integer_sequence<int, kTilePixels>()); }

}  // namespace goldstick

#endif
