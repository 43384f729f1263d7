// Eight numbers come from memory as 32 bits in one operation; of more, which compilers take, each eight need two.
#include "decode/widen.hpp"

#include "base/inline.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace goldstick {

namespace {

// E4M3 has half of float16's exponents, of the same kind: moved into its place, a number is 2⁻⁸ times what it was. What
// would be 480 is not a number.
constexpr int kMagnitude = 0x7f, kFp8Shift = 7, kNotANumber = 0x7fff;
constexpr float kFp8Factor = 256.0f;

float number(std::int8_t code) { return static_cast<float>(code); }
float number(Fp8 code) {
    const int bits = static_cast<int>(code), magnitude = bits & kMagnitude;
    const int moved = magnitude == kMagnitude ? kNotANumber : magnitude << kFp8Shift;
    return to_float(float16{static_cast<std::uint16_t>((bits & 0x80) << 8 | moved)}) * kFp8Factor;
}
template <typename T>
float number(T half) {
    return to_float(half);
}

#if defined(__x86_64__)
GOLDSTICK_AVX2 inline __m256 eight(const std::int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

GOLDSTICK_AVX2 inline __m256 eight(const Fp8* from) {
    const __m128i bits = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m128i largest = _mm_set1_epi16(kMagnitude), magnitude = _mm_and_si128(bits, largest);
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(bits, _mm_set1_epi16(0x80)), 8);
    const __m128i none = _mm_and_si128(_mm_cmpeq_epi16(magnitude, largest), _mm_set1_epi16(kNotANumber));
    const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, kFp8Shift), sign), none);
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(kFp8Factor));
}

GOLDSTICK_AVX2 inline __m256 eight(const bfloat16* from) {
    const __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}

GOLDSTICK_AVX2 inline __m256 eight(const float16* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

template <typename T>
GOLDSTICK_AVX2 std::int64_t widen_eights(const T* from, std::int64_t count, float* to) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, eight(from + i));
    return i;
}

GOLDSTICK_AVX2 std::int64_t widen_eights(const Nibbles* from, std::int64_t count, float* to) {
    const __m128i four_bits = _mm_set1_epi8(0x0f);
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i));
        const __m128i low = _mm_and_si128(both, four_bits), high = _mm_and_si128(_mm_srli_epi16(both, 4), four_bits);
        const __m128i codes = _mm_unpacklo_epi8(low, high);
        _mm256_storeu_ps(to + 2 * i, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)));
        _mm256_storeu_ps(to + 2 * i + 8, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8))));
    }
    return i;
}
#else
template <typename T>
std::int64_t widen_eights(const T*, std::int64_t, float*) {
    return 0;
}
#endif

template <typename T>
void widen_all(const T* from, std::int64_t count, float* to, bool use_avx2) {
    std::int64_t i = use_avx2 ? widen_eights(from, count, to) : 0;
    for (; i < count; ++i) to[i] = number(from[i]);
}

}  // namespace

void widen(const std::int8_t* from, std::int64_t count, float* to, bool use_avx2) {
    widen_all(from, count, to, use_avx2);
}

void widen(const Fp8* from, std::int64_t count, float* to, bool use_avx2) {
    widen_all(from, count, to, use_avx2);
}

void widen(const Nibbles* from, std::int64_t count, float* to, bool use_avx2) {
    for (std::int64_t i = use_avx2 ? widen_eights(from, count, to) : 0; i < count; ++i) {
        to[2 * i] = static_cast<float>(static_cast<int>(from[i]) & 0x0f);
        to[2 * i + 1] = static_cast<float>(static_cast<int>(from[i]) >> 4);
    }
}

void widen_codes(CacheCoding coding, const void* codes, std::int64_t at, std::int64_t count, float* to, bool use_avx2) {
    switch (coding) {
        case CacheCoding::none: break;
        case CacheCoding::int8: return widen(static_cast<const std::int8_t*>(codes) + at, count, to, use_avx2);
        case CacheCoding::fp8: return widen(static_cast<const Fp8*>(codes) + at, count, to, use_avx2);
        case CacheCoding::int4: return widen(static_cast<const Nibbles*>(codes) + at, count, to, use_avx2);
    }
}

void widen(const bfloat16* from, std::int64_t count, float* to, bool use_avx2) {
    widen_all(from, count, to, use_avx2);
}

void widen(const float16* from, std::int64_t count, float* to, bool use_avx2) {
    widen_all(from, count, to, use_avx2);
}

}  // namespace goldstick
