// Float codes with AVX2, F16C and FMA: two vectors of eight.
#include <cstring>

#include "base/inline.hpp"
#include "codes/float_codes.hpp"
#include "codes/float_row_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#define GOLDSTICK_HERE GOLDSTICK_AVX2

namespace goldstick {
namespace {

constexpr int kSums = 4;  // of sixteen that are added up side by side

struct Sixteen {
    __m256 low, high;

    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Sixteen all(float value) {
        return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Sixteen halves(float low, float high) {
        return {_mm256_set1_ps(low), _mm256_set1_ps(high)};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Sixteen zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Sixteen load(const float* from) {
        return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Sixteen plus(const Sixteen& a, const Sixteen& b) {
        return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Sixteen times(const Sixteen& a, const Sixteen& b) {
        return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void store(float* to) const {
        _mm256_storeu_ps(to, low);
        _mm256_storeu_ps(to + 8, high);
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void add_product(const Sixteen& a, const Sixteen& b) {
        low = _mm256_fmadd_ps(a.low, b.low, low);
        high = _mm256_fmadd_ps(a.high, b.high, high);
    }
};

template <int tokens>
constexpr int kParts = tokens > 2 ? 4 : tokens;  // 8 sums, and 16 registers

inline void call_ahead(const std::uint8_t*) {}  // the processor does, and better where it is not told

template <Widening widening>
struct Wide {
    GOLDSTICK_AVX2 explicit Wide(const FloatCodes& codes) : codes(codes) {
        low = high = _mm256_setzero_ps();
        largest = _mm256_setzero_si256();
        if constexpr (widening == Widening::kNibbles) {
            low = _mm256_loadu_ps(codes.table);
            high = _mm256_loadu_ps(codes.table + 8);
        }
    }

    template <int count>
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void look(const std::uint8_t* row, std::int64_t column) {
        if constexpr (kFp8<widening>) {
            const auto* const from = reinterpret_cast<const __m128i*>(row + column);
            const __m256i bytes = count == 32 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                                              : _mm256_broadcastsi128_si256(_mm_loadu_si128(from));
            largest = _mm256_max_epu8(largest, _mm256_add_epi8(bytes, bytes));  // without the sign
        }
    }

    GOLDSTICK_AVX2 GOLDSTICK_INLINE Sixteen sixteen(const std::uint8_t* row, std::int64_t column) const {
        if constexpr (widening == Widening::kNibbles) {
            return {eight_nibbles(row + column / 2), eight_nibbles(row + column / 2 + 4)};
        } else if constexpr (kFp8<widening>) {
            return {eight_bytes(row + column), eight_bytes(row + column + 8)};
        } else {
            return {eight_of_table(row, column), eight_of_table(row, column + 8)};
        }
    }

    // The upper half of a float are a code's sign, exponent and mantissa; the lower is zero. Part: halves, then quarters.
    template <int parts, int part, int tokens>
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void add_block(const std::uint8_t* row, std::int64_t column, const float* x,
                                                   std::int64_t apart, Sixteen (&partial)[tokens][4]) {
        const __m256i zero = _mm256_setzero_si256();
        const __m256i mask = _mm256_set1_epi16(static_cast<short>(kFloatBits<widening> >> 16));
        GOLDSTICK_UNROLL
        for (int half = 0; half < 2; ++half) {
            if (parts > 1 && half != part % 2) continue;
            const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + column + half * 32));
            if (part < 2) largest = _mm256_max_epu8(largest, _mm256_add_epi8(bytes, bytes));  // without the sign
            GOLDSTICK_UNROLL
            for (int k = 0; k < 4; k += 2) {
                if (parts > 2 && k / 2 != part / 2) continue;
                const __m256i words = k == 0 ? _mm256_unpacklo_epi8(zero, bytes) : _mm256_unpackhi_epi8(zero, bytes);
                const __m256i upper = _mm256_and_si256(_mm256_srai_epi16(words, 24 - kMoved<widening>), mask);
                const __m256 first = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, upper));
                const __m256 second = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, upper));
                GOLDSTICK_UNROLL
                for (int t = 0; t < tokens; ++t) {
                    const float* const inputs = x + t * apart + k * 16 + half * 8;
                    add(first, inputs, half == 0 ? partial[t][k].low : partial[t][k].high);
                    add(second, inputs + 16, half == 0 ? partial[t][k + 1].low : partial[t][k + 1].high);
                }
            }
        }
    }

    GOLDSTICK_AVX2 bool seen_no_number() const {
        const __m256i first = _mm256_set1_epi8(static_cast<char>(kNoNumber<widening>));
        return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(largest, first), largest)) != 0;
    }

private:
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static void add(__m256 values, const float* inputs, __m256& sum) {
        sum = _mm256_fmadd_ps(values, _mm256_loadu_ps(inputs), sum);
    }

    // The sign, exponent and mantissa of a code as those of a float, whose bias is larger.
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static __m256 eight_bytes(const std::uint8_t* from) {
        const __m256i codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
        const __m256i moved = _mm256_slli_epi32(codes, kMoved<widening>);
        return _mm256_castsi256_ps(_mm256_and_si256(moved, _mm256_set1_epi32(kFloatBits<widening>)));
    }

    GOLDSTICK_AVX2 GOLDSTICK_INLINE __m256 eight_nibbles(const std::uint8_t* from) const {
        std::int32_t word;
        std::memcpy(&word, from, sizeof word);
        const __m256i spread =
            _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        // Three bits choose among eight, the fourth, as a sign, between both eights.
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, spread), _mm256_permutevar8x32_ps(high, spread),
                                _mm256_castsi256_ps(_mm256_slli_epi32(spread, 28)));
    }

    GOLDSTICK_AVX2 GOLDSTICK_INLINE __m256 eight_of_table(const std::uint8_t* row, std::int64_t column) const {
        std::int32_t spread[8];
        for (int i = 0; i < 8; ++i) spread[i] = static_cast<std::int32_t>(float_code(row, column + i, codes.bits));
        return _mm256_i32gather_ps(codes.table, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(spread)), 4);
    }

    const FloatCodes& codes;
    __m256 low, high;
    __m256i largest;
};

}  // namespace
}  // namespace goldstick

#include "codes/float_dispatch.hpp"

namespace goldstick {

FloatRowKernels float_rows_avx2(Widening widening) { return kernels_for(widening); }

}  // namespace goldstick

#endif
