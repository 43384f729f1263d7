// Hadamard transforms with AVX-512: vectors of sixteen.
#include "base/floats.hpp"
#include "base/inline.hpp"
#include "linear/hadamard.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define GOLDSTICK_HERE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

namespace goldstick {
namespace {

struct Lanes {
    static constexpr int kCount = 16;
    __m512 lanes;

    GOLDSTICK_HERE GOLDSTICK_INLINE static Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Lanes load(const bfloat16* from) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Lanes load(const float16* from) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE void store(float* to) const { _mm512_storeu_ps(to, lanes); }
    GOLDSTICK_HERE GOLDSTICK_INLINE void store(bfloat16* to) const {
        const __m512i bits = _mm512_castps_si512(lanes);
        const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, even), _mm512_set1_epi32(0x7fff));
        const __mmask16 none = _mm512_cmp_ps_mask(lanes, lanes, _CMP_UNORD_Q);
        const __m512i upper = _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), none, _mm512_set1_epi32(0x7fc0));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(upper));
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE void store(float16* to) const {
        constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(lanes, kNearest));
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Lanes plus(const Lanes& a, const Lanes& b) {
        return {_mm512_add_ps(a.lanes, b.lanes)};
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE static Lanes minus(const Lanes& a, const Lanes& b) {
        return {_mm512_sub_ps(a.lanes, b.lanes)};
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE Lanes times(float factor) const {
        return {_mm512_mul_ps(lanes, _mm512_set1_ps(factor))};
    }
    GOLDSTICK_HERE GOLDSTICK_INLINE Lanes within() const {
        const __m512 first = joined(_mm512_permute_ps(lanes, 0xb1), lanes, 0xaaaa);
        const __m512 second = joined(_mm512_permute_ps(first, 0x4e), first, 0xcccc);
        const __m512 third = joined(_mm512_shuffle_f32x4(second, second, 0xb1), second, 0xf0f0);
        return {joined(_mm512_shuffle_f32x4(third, third, 0x4e), third, 0xff00)};
    }

private:
    // The lower of two partners becomes partner + own, the upper, of `uppers`, partner + (−own).
    GOLDSTICK_HERE GOLDSTICK_INLINE static __m512 joined(__m512 partners, __m512 own, __mmask16 uppers) {
        return _mm512_add_ps(partners, _mm512_xor_ps(own, _mm512_maskz_mov_ps(uppers, _mm512_set1_ps(-0.0f))));
    }
};

}  // namespace
}  // namespace goldstick

#include "linear/hadamard_blocks.hpp"

namespace goldstick {

template <typename T>
GOLDSTICK_HERE void hadamard_avx512(const Hadamard<T>& call, float* buffer) {
    transform_all(call, buffer);
}

}  // namespace goldstick

#else

namespace goldstick {

template <typename T>
void hadamard_avx512(const Hadamard<T>& call, float* buffer) {
    hadamard_avx2(call, buffer);
}

}  // namespace goldstick

#endif

namespace goldstick {

template void hadamard_avx512(const Hadamard<float>&, float*);
template void hadamard_avx512(const Hadamard<bfloat16>&, float*);
template void hadamard_avx512(const Hadamard<float16>&, float*);

}  // namespace goldstick
