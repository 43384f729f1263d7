// Convolutions with AVX2: two vectors of eight output channels and up to six pixels, or eight pixels of one channel.
#include "base/inline.hpp"
#include "convolution/convolution.hpp"
#include "convolution/finish_avx2.hpp"
#include "convolution/past_caches.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace goldstick {
namespace {

constexpr std::int64_t kTilePixels = 6;  // most pixels whose sums stay in registers

GOLDSTICK_AVX2 inline __m256i pair_at(const std::int16_t* q) {
    std::int32_t pair;
    std::memcpy(&pair, q, sizeof pair);
    return _mm256_set1_epi32(pair);
}

GOLDSTICK_AVX2 inline __m256i widened_at(const std::int8_t* codes) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(codes)));
}

GOLDSTICK_AVX2 inline void add_to(float* sums, __m256i products, bool first) {
    const __m256 found = _mm256_cvtepi32_ps(products);
    _mm256_storeu_ps(sums, first ? found : _mm256_add_ps(_mm256_loadu_ps(sums), found));
}

// Sums to outputs: `channels` of each pixel, which may be fewer than the vectors hold.
template <int vectors, int count>
GOLDSTICK_AVX2 GOLDSTICK_INLINE void write(const PixelOutputs& to, const __m256i (&low)[count],
                                           const __m256i (&high)[count], std::int64_t begin, std::int64_t channels) {
    const WideFinish low_finish(to.finish, 0), high_finish(to.finish, 8);
    float* y = to.y + begin * to.step;
    const bool past_caches = to.finish.past_caches && channels == kRows && to.step % kRows == 0 && on_a_line(y);
    GOLDSTICK_UNROLL
    for (int t = 0; t < count; ++t, y += to.step) {
        const __m256 first = low_finish(_mm256_cvtepi32_ps(low[t]));
        if constexpr (vectors == 1) {
            channels == 8 ? _mm256_storeu_ps(y, first) : store_some(y, first, channels);
        } else {
            const __m256 second = high_finish(_mm256_cvtepi32_ps(high[t]));
            if (past_caches) {
                _mm256_stream_ps(y, first);
                _mm256_stream_ps(y + 8, second);
            } else {
                _mm256_storeu_ps(y, first);
                channels == kRows ? _mm256_storeu_ps(y + 8, second) : store_some(y + 8, second, channels - 8);
            }
        }
    }
}

// The pixels from `begin` on; `vectors` of channels, of which a group's last ones may fill one only.
template <int vectors, int count>
GOLDSTICK_AVX2 void tile(const TileCall<std::int16_t>& call, std::int64_t begin) {
    const std::int8_t* panel = call.panel;
    const std::int16_t* const* const pixels = call.pixels + begin;
    float* const sums = call.sums + begin * kRows;
    // One pixel after the other, or more would be at work than there are registers; fewer leave them by being held to it.
    constexpr bool many = vectors == 2 && count > 3;
    __m256i sums_low[count], sums_high[count];
    GOLDSTICK_UNROLL
    for (int t = 0; t < count; ++t) {
        sums_low[t] = _mm256_setzero_si256();
        if constexpr (vectors == 2) {
            sums_high[t] = _mm256_setzero_si256();
        }
    }
    bool first_span = true;
    for (const Run& run : call.runs) {
        const std::int16_t* q[count];
        GOLDSTICK_UNROLL
        for (int t = 0; t < count; ++t) {
            q[t] = pixels[t] + call.group + run.offset;
        }
        for (std::int64_t k = 0; k < run.steps; ++k, panel += 2 * kRows) {
            const __m256i low = widened_at(panel), high = widened_at(panel + kRows);
            GOLDSTICK_UNROLL
            for (int t = 0; t < count; ++t) {
                const __m256i both = pair_at(q[t] + 2 * k);
                sums_low[t] = _mm256_add_epi32(sums_low[t], _mm256_madd_epi16(low, both));
                if constexpr (vectors == 2) {
                    sums_high[t] = _mm256_add_epi32(sums_high[t], _mm256_madd_epi16(high, both));
                }
                if constexpr (many) {
                    asm volatile("" : "+x"(sums_low[t]), "+x"(sums_high[t]));
                }
            }
        }
        if (run.closes && call.outputs) {
            return write<vectors>(*call.outputs, sums_low, sums_high, begin, call.channels);
        }
        if (run.closes) {
            GOLDSTICK_UNROLL
            for (int t = 0; t < count; ++t) {
                add_to(sums + t * kRows, sums_low[t], first_span);
                sums_low[t] = _mm256_setzero_si256();
                if constexpr (vectors == 2) {
                    add_to(sums + t * kRows + 8, sums_high[t], first_span);
                    sums_high[t] = _mm256_setzero_si256();
                }
            }
            first_span = false;
        }
    }
}

template <int vectors>
GOLDSTICK_AVX2 inline void tiles(const TileCall<std::int16_t>& call) {
    const std::int64_t each = evenly(call.count, kTilePixels);
    for (std::int64_t begin = 0; begin < call.count; begin += each) {
        switch (std::min(each, call.count - begin)) {
            case 1: tile<vectors, 1>(call, begin); break;
            case 2: tile<vectors, 2>(call, begin); break;
            case 3: tile<vectors, 3>(call, begin); break;
            case 4: tile<vectors, 4>(call, begin); break;
            case 5: tile<vectors, 5>(call, begin); break;
            default: tile<vectors, 6>(call, begin);
        }
    }
}

GOLDSTICK_AVX2 inline __m256i codes_at(const std::int16_t* q) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
}

// A vector of products of neighbouring codes with two taps is that of every other pixel.
GOLDSTICK_AVX2 void plane_dense(const ConvolutionShape& shape, const std::int16_t* taps, const Plane& plane,
                                std::int32_t* sums) {
    const std::int64_t pairs = shape.tap_pairs();
    for (std::int64_t row = 0; row < plane.out_rows; ++row, sums += plane.out_columns) {
        const std::int16_t* const codes = plane.codes + row * plane.columns;
        for (std::int64_t column = 0; column < plane.out_columns; column += 16) {
            __m256i even = _mm256_setzero_si256(), odd = even;
            for (std::int64_t i = 0; i < shape.kernel_rows; ++i) {
                const std::int16_t* const q = codes + i * shape.dilation_rows * plane.columns + column;
                for (std::int64_t j = 0; j < pairs; ++j) {
                    const __m256i both = pair_at(taps + (i * pairs + j) * 2);
                    even = _mm256_add_epi32(even, _mm256_madd_epi16(codes_at(q + 2 * j), both));
                    odd = _mm256_add_epi32(odd, _mm256_madd_epi16(codes_at(q + 2 * j + 1), both));
                }
            }
            const __m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
            const __m256i first = _mm256_permute2x128_si256(low, high, 0x20);
            const __m256i second = _mm256_permute2x128_si256(low, high, 0x31);
            if (column + 16 <= plane.out_columns) {
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + column), first);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + column + 8), second);
            } else {
                std::int32_t rest[16];
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(rest), first);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(rest + 8), second);
                std::memcpy(sums + column, rest, static_cast<std::size_t>(plane.out_columns - column) * sizeof *rest);
            }
        }
    }
}

GOLDSTICK_AVX2 void plane_by_two(const ConvolutionShape& shape, const std::int16_t* taps, const Plane& plane,
                                 std::int32_t* sums) {
    const std::int64_t pairs = shape.tap_pairs();
    for (std::int64_t row = 0; row < plane.out_rows; ++row, sums += plane.out_columns) {
        const std::int16_t* const codes = plane.codes + row * shape.stride_rows * plane.columns;
        for (std::int64_t column = 0; column < plane.out_columns; column += 8) {
            __m256i found = _mm256_setzero_si256();
            for (std::int64_t i = 0; i < shape.kernel_rows; ++i) {
                const std::int16_t* const q = codes + i * shape.dilation_rows * plane.columns + 2 * column;
                for (std::int64_t j = 0; j < pairs; ++j) {
                    const __m256i both = pair_at(taps + (i * pairs + j) * 2);
                    found = _mm256_add_epi32(found, _mm256_madd_epi16(codes_at(q + 2 * j), both));
                }
            }
            if (column + 8 <= plane.out_columns) {
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + column), found);
            } else {
                std::int32_t rest[8];
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(rest), found);
                std::memcpy(sums + column, rest, static_cast<std::size_t>(plane.out_columns - column) * sizeof *rest);
            }
        }
    }
}

}  // namespace

void convolution_tiles_avx2(const TileCall<std::int16_t>& call) {  // sums begin with 0
    (call.channels > 8 ? tiles<2> : tiles<1>)(call);
}

void plane_avx2(const ConvolutionShape& shape, const std::int16_t* taps, const Plane& plane, std::int32_t* sums) {
    if (shape.dilation_columns != 1 || shape.stride_columns > 2) {
        return plane_scalar(shape, taps, plane, sums);
    }
    if (shape.stride_columns == 2) {
        return plane_by_two(shape, taps, plane, sums);
    }
    if (shape.stride_rows != 1) {
        return plane_scalar(shape, taps, plane, sums);
    }
    plane_dense(shape, taps, plane, sums);
}

}  // namespace goldstick

#endif
