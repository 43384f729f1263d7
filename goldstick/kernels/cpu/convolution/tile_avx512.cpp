// Convolutions with AVX-512 VNNI: a vector of sixteen output channels and up to twelve pixels.
#include "convolution/convolution.hpp"
#include "linear/avx512.hpp"

#if defined(__x86_64__)
#include <cstring>

namespace goldstick {
namespace {

template <int count>
GOLDSTICK_AVX512 void tile(const std::int8_t* panel, const std::vector<Run>& runs, const std::int16_t* const* pixels,
                           std::int64_t shift, float* sums) {
    __m512i products[count];
    GOLDSTICK_UNROLL
    for (int t = 0; t < count; ++t) {
        products[t] = _mm512_setzero_si512();
    }
    bool first_span = true;
    for (const Run& run : runs) {
        const std::int64_t offset = shift + run.offset;
        for (std::int64_t k = 0; k < run.pairs; ++k, panel += 2 * kRows) {
            const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel));
            const __m512i codes = _mm512_maskz_cvtepi8_epi16(0xffffffff, bytes);
            GOLDSTICK_UNROLL
            for (int t = 0; t < count; ++t) {
                std::int32_t pair;
                std::memcpy(&pair, pixels[t] + offset + 2 * k, sizeof pair);
                products[t] = add_products<false>(products[t], codes, pair);
            }
        }
        if (run.closes) {
            GOLDSTICK_UNROLL
            for (int t = 0; t < count; ++t) {
                const __m512 found = _mm512_cvtepi32_ps(products[t]);
                float* const to = sums + t * kRows;
                _mm512_storeu_ps(to, first_span ? found : _mm512_add_ps(_mm512_loadu_ps(to), found));
                products[t] = _mm512_setzero_si512();
            }
            first_span = false;
        }
    }
}

using Tile = void(const std::int8_t*, const std::vector<Run>&, const std::int16_t* const*, std::int64_t, float*);

template <int... count>
Tile* tile_of(std::int64_t wanted, std::integer_sequence<int, count...>) {
    static constexpr Tile* functions[] = {tile<count + 1>...};
    return functions[wanted - 1];
}

}  // namespace

void convolution_tile_avx512(const std::int8_t* panel, const std::vector<Run>& runs, const std::int16_t* const* pixels,
                             std::int64_t shift, std::int64_t count, float* sums) {
    tile_of(count, std::make_integer_sequence<int, kConvolutionTile512>())(panel, runs, pixels, shift, sums);
}

}  // namespace goldstick

#endif
