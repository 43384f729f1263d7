// Float codes with AVX-512: one vector of sixteen.
#include <cstring>

#include "base/inline.hpp"
#include "codes/float_codes.hpp"
#include "codes/float_row_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#define GOLDSTICK_HERE __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace goldstick {
namespace {

constexpr int kSums = 8;  // of sixteen that are added up side by side

struct Sixteen {
    __m512 lanes;

    GOLDSTICK_HERE GOLDSTICK_INLINE static Sixteen all(float value) { return {_mm512_set1_ps(value)}; }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Sixteen halves(float low, float high) {
        return {_mm512_mask_blend_ps(0xff00, _mm512_set1_ps(low), _mm512_set1_ps(high))};
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Sixteen zero() { return {_mm512_setzero_ps()}; }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Sixteen load(const float* from) { return {_mm512_loadu_ps(from)}; }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Sixteen plus(const Sixteen& a, const Sixteen& b) {
        return {_mm512_add_ps(a.lanes, b.lanes)};
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Sixteen times(const Sixteen& a, const Sixteen& b) {
        return {_mm512_mul_ps(a.lanes, b.lanes)};
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE void store(float* to) const { _mm512_storeu_ps(to, lanes); }
    GOLDSTICK_HERE GOLDSTICK_INLINE void add_product(const Sixteen& a, const Sixteen& b) {
        lanes = _mm512_fmadd_ps(a.lanes, b.lanes, lanes);
    }
};

template <int tokens>
constexpr int kParts = 1;

constexpr std::int64_t kAhead = 16384;  // bytes between what is read and what is called for, into the second cache

GOLDSTICK_HERE GOLDSTICK_INLINE void call_ahead(const std::uint8_t* from) {
    _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T1);
}

template <Widening widening>
struct Wide {
    GOLDSTICK_HERE explicit Wide(const FloatCodes& codes) : codes(codes) {
        table = widening == Widening::kNibbles ? _mm512_loadu_ps(codes.table) : _mm512_setzero_ps();
        largest = _mm256_setzero_si256(), widest = _mm512_setzero_si512();
    }

    template <int count>
    GOLDSTICK_HERE GOLDSTICK_INLINE void look(const std::uint8_t* row, std::int64_t column) {
        if constexpr (kFp8<widening>) {
            const auto* const from = reinterpret_cast<const __m128i*>(row + column);
            const __m256i bytes = count == 32 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                                              : _mm256_broadcastsi128_si256(_mm_loadu_si128(from));
            largest = _mm256_max_epu8(largest, _mm256_add_epi8(bytes, bytes));  // without the sign
        }
    }

    GOLDSTICK_HERE GOLDSTICK_INLINE Sixteen sixteen(const std::uint8_t* row, std::int64_t column) const {
        if constexpr (widening == Widening::kNibbles) {
            std::int32_t words[2];
            std::memcpy(words, row + column / 2, sizeof words);
            const __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32(words[0]), 0xff00, words[1]);
            const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
            return {_mm512_maskz_permutexvar_ps(0xffff, _mm512_maskz_srlv_epi32(0xffff, both, places), table)};
        } else if constexpr (kFp8<widening>) {
            // The sign, exponent and mantissa of a code as those of a float, whose bias is larger.
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + column));
            const __m512i spread = _mm512_maskz_cvtepi8_epi32(0xffff, bytes);
            const __m512i moved = _mm512_maskz_slli_epi32(0xffff, spread, kMoved<widening>);
            return {_mm512_castsi512_ps(_mm512_and_si512(moved, _mm512_set1_epi32(kFloatBits<widening>)))};
        } else {
            float values[16];
            for (int i = 0; i < 16; ++i) values[i] = codes.table[float_code(row, column + i, codes.bits)];
            return Sixteen::load(values);
        }
    }

    // The upper half of a float are a code's sign, exponent and mantissa; the lower is zero.
    template <int parts, int part, int tokens>
    GOLDSTICK_HERE GOLDSTICK_INLINE void add_block(const std::uint8_t* row, std::int64_t column, const float* x,
                                                   std::int64_t apart, Sixteen (&partial)[tokens][4]) {
        const __m512i zero = _mm512_setzero_si512(), bytes = _mm512_loadu_si512(row + column);
        const __m512i mask = _mm512_set1_epi16(static_cast<short>(kFloatBits<widening> >> 16));
        widest = _mm512_max_epu8(widest, _mm512_add_epi8(bytes, bytes));  // without the sign
        GOLDSTICK_UNROLL
        for (int k = 0; k < 4; k += 2) {
            const __m512i words = k == 0 ? _mm512_unpacklo_epi8(zero, bytes) : _mm512_unpackhi_epi8(zero, bytes);
            const __m512i upper = _mm512_and_si512(_mm512_srai_epi16(words, 24 - kMoved<widening>), mask);
            const __m512 first = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, upper));
            const __m512 second = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, upper));
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) {
                const float* const inputs = x + t * apart + k * 16;
                partial[t][k].add_product({first}, Sixteen::load(inputs));
                partial[t][k + 1].add_product({second}, Sixteen::load(inputs + 16));
            }
        }
    }

    GOLDSTICK_HERE bool seen_no_number() const {
        const __m512i first_wide = _mm512_set1_epi8(static_cast<char>(kNoNumber<widening>));
        if (_mm512_cmpge_epu8_mask(widest, first_wide) != 0) return true;
        const __m256i first = _mm256_set1_epi8(static_cast<char>(kNoNumber<widening>));
        return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(largest, first), largest)) != 0;
    }

private:
    const FloatCodes& codes;
    __m512 table;
    __m256i largest;
    __m512i widest;
};

}  // namespace
}  // namespace goldstick

#include "codes/float_dispatch.hpp"

namespace goldstick {

FloatRowKernels float_rows_avx512(Widening widening) { return kernels_for(widening); }

}  // namespace goldstick

#endif
