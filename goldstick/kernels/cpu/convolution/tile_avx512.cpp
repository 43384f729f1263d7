// Convolutions with AVX-512 VNNI: one vector of sixteen output channels or two, and up to twelve pixels.
#include "convolution/convolution.hpp"
#include "convolution/past_caches.hpp"
#include "linear/avx512.hpp"

#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

namespace goldstick {
namespace {

constexpr int kTilePixels = 12;  // most pixels whose sums stay in registers

// The codes of a pixel that are multiplied together, two of 16 bits or four of bytes, for all channels.
template <typename Code>
GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i pixel_at(const Code* q) {
    std::int32_t together;
    std::memcpy(&together, q, sizeof together);
    return _mm512_set1_epi32(together);
}

// Add the products of each channel's codes and a pixel's; bytes of pixels are not negative.
template <typename Code>
GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i add(__m512i sum, __m512i codes, __m512i pixel) {
    return sizeof(Code) == 1 ? _mm512_dpbusd_epi32(sum, pixel, codes) : _mm512_dpwssd_epi32(sum, codes, pixel);
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

// Sums of the pixels from `first` on to outputs of the block `block`.
template <int blocks, int count>
GOLDSTICK_AVX512 GOLDSTICK_INLINE void write(const PixelOutputs& to, const __m512i (&products)[blocks][count], int block,
                                             std::int64_t first, std::int64_t channels) {
    const bool all = channels >= kRows;
    const __mmask16 some = static_cast<__mmask16>(all ? 0xffffu : (1u << channels) - 1);
    const __m512 by = _mm512_loadu_ps(to.finish.by + block * kRows);
    const __m512 shift = _mm512_loadu_ps(to.finish.shift + block * kRows);
    const __m512 least = _mm512_set1_ps(to.finish.least), most = _mm512_set1_ps(to.finish.most);
    float* y = to.y + first * to.step + block * kRows;
    const bool past_caches = to.finish.past_caches && all && to.step % kRows == 0 && on_a_line(y);
    GOLDSTICK_UNROLL
    for (int t = 0; t < count; ++t, y += to.step) {
        const __m512 found = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(products[block][t]), by), shift);
        const __m512 within = _mm512_min_ps(most, _mm512_max_ps(least, found));
        if (past_caches) {
            _mm512_stream_ps(y, within);
        } else if (all) {  // a store with a mask takes longer
            _mm512_storeu_ps(y, within);
        } else {
            _mm512_mask_storeu_ps(y, some, within);
        }
    }
}

// The pixels from `first` on, of so many blocks of channels.
template <typename Code, int blocks, int count>
GOLDSTICK_AVX512 void tile(const TileCall<Code>& call, std::int64_t first) {
    constexpr std::int64_t together = 4 / sizeof(Code);
    const std::int8_t* panel = call.panel;
    const std::int64_t next = call.block_codes;
    const Code* const* const pixels = call.pixels + first;
    __m512i begin[blocks], products[blocks][count];
    GOLDSTICK_UNROLL
    for (int b = 0; b < blocks; ++b) {
        begin[b] = _mm512_loadu_si512(call.begin + b * kRows);
        GOLDSTICK_UNROLL
        for (int t = 0; t < count; ++t) {
            products[b][t] = begin[b];
        }
    }
    bool first_span = true;
    for (const Run& run : call.runs) {
        const std::int64_t offset = call.group + run.offset, end = offset + together * run.steps;
        for (std::int64_t at = offset; at < end; at += together, panel += together * kRows) {
            __m512i codes[blocks];
            GOLDSTICK_UNROLL
            for (int b = 0; b < blocks; ++b) {
                codes[b] = codes_at<Code>(panel + b * next);
            }
            GOLDSTICK_UNROLL
            for (int t = 0; t < count; ++t) {
                const __m512i values = pixel_at(pixels[t] + at);
                GOLDSTICK_UNROLL
                for (int b = 0; b < blocks; ++b) {
                    products[b][t] = add<Code>(products[b][t], codes[b], values);
                }
            }
        }
        if (run.closes && call.outputs) {
            GOLDSTICK_UNROLL
            for (int b = 0; b < blocks; ++b) {
                write(*call.outputs, products, b, first, call.channels - b * kRows);
            }
            return;
        }
        if (run.closes) {
            GOLDSTICK_UNROLL
            for (int b = 0; b < blocks; ++b) {
                GOLDSTICK_UNROLL
                for (int t = 0; t < count; ++t) {
                    const __m512 found = _mm512_cvtepi32_ps(products[b][t]);
                    float* const to = call.sums + (b * kConvolutionPixels + first + t) * kRows;
                    _mm512_storeu_ps(to, first_span ? found : _mm512_add_ps(_mm512_loadu_ps(to), found));
                    products[b][t] = begin[b];
                }
            }
            first_span = false;
        }
    }
}

template <typename Code, int blocks, int... count>
void tiles(const TileCall<Code>& call, std::integer_sequence<int, count...>) {
    static constexpr void (*functions[])(const TileCall<Code>&, std::int64_t) = {tile<Code, blocks, count + 1>...};
    const std::int64_t each = evenly(call.count, kTilePixels);
    for (std::int64_t first = 0; first < call.count; first += each) {
        functions[std::min(each, call.count - first) - 1](call, first);
    }
}

template <typename Code>
void tiles_of_blocks(const TileCall<Code>& call) {
    constexpr auto counts = std::make_integer_sequence<int, kTilePixels>();
    call.blocks == 2 ? tiles<Code, 2>(call, counts) : tiles<Code, 1>(call, counts);
}

}  // namespace

void convolution_tiles_avx512(const TileCall<std::int16_t>& call) { tiles_of_blocks(call); }
void byte_tiles_avx512(const TileCall<std::uint8_t>& call) { tiles_of_blocks(call); }

}  // namespace goldstick

#endif
