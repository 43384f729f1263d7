// Hadamard transforms with AVX2 and F16C: vectors of eight.
#include "base/floats.hpp"
#include "base/inline.hpp"
#include "linear/hadamard.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define GOLDSTICK_HERE GOLDSTICK_AVX2

namespace goldstick {
namespace {

struct Lanes {
    static constexpr int kCount = 8;
    __m256 lanes;

    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Lanes load(const float* from) { return {_mm256_loadu_ps(from)}; }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Lanes load(const bfloat16* from) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Lanes load(const float16* from) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void store(float* to) const { _mm256_storeu_ps(to, lanes); }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void store(bfloat16* to) const {
        const __m256i bits = _mm256_castps_si256(lanes);
        const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, even), _mm256_set1_epi32(0x7fff));
        const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q));
        const __m256i upper = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0), none);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void store(float16* to) const {
        constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(lanes, kNearest));
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Lanes plus(const Lanes& a, const Lanes& b) {
        return {_mm256_add_ps(a.lanes, b.lanes)};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static Lanes minus(const Lanes& a, const Lanes& b) {
        return {_mm256_sub_ps(a.lanes, b.lanes)};
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE Lanes times(float factor) const {
        return {_mm256_mul_ps(lanes, _mm256_set1_ps(factor))};
    }
    // Each lane and its partner: the lower becomes partner + lane, the upper partner + (−lane).
    GOLDSTICK_AVX2 GOLDSTICK_INLINE Lanes within() const {
        const __m256 minus = _mm256_set1_ps(-0.0f), plus = _mm256_setzero_ps();
        const __m256 one = _mm256_xor_ps(lanes, _mm256_blend_ps(plus, minus, 0xaa));
        const __m256 first = _mm256_add_ps(_mm256_permute_ps(lanes, 0xb1), one);
        const __m256 two = _mm256_xor_ps(first, _mm256_blend_ps(plus, minus, 0xcc));
        const __m256 second = _mm256_add_ps(_mm256_permute_ps(first, 0x4e), two);
        const __m256 four = _mm256_xor_ps(second, _mm256_blend_ps(plus, minus, 0xf0));
        return {_mm256_add_ps(_mm256_permute2f128_ps(second, second, 1), four)};
    }
};

}  // namespace
}  // namespace goldstick

#include "linear/hadamard_blocks.hpp"

namespace goldstick {

template <typename T>
GOLDSTICK_AVX2 void hadamard_avx2(const Hadamard<T>& call, float* buffer) {
    transform_all(call, buffer);
}

}  // namespace goldstick

#else

namespace goldstick {

template <typename T>
void hadamard_avx2(const Hadamard<T>& call, float* buffer) {
    hadamard_scalar(call, buffer);
}

}  // namespace goldstick

#endif

namespace goldstick {

template void hadamard_avx2(const Hadamard<float>&, float*);
template void hadamard_avx2(const Hadamard<bfloat16>&, float*);
template void hadamard_avx2(const Hadamard<float16>&, float*);

}  // namespace goldstick
