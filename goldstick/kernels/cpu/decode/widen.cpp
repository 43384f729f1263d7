// Eight numbers come from memory as 32 bits in one operation; of more, which compilers take, each eight need two.
#include "decode/widen.hpp"

#include "base/inline.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace goldstick {

namespace {

float number(std::int8_t code) { return static_cast<float>(code); }
template <typename T>
float number(T half) {
    return to_float(half);
}

#if defined(__x86_64__)
GOLDSTICK_AVX2 inline __m256 eight(const std::int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
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

void widen(const bfloat16* from, std::int64_t count, float* to, bool use_avx2) {
    widen_all(from, count, to, use_avx2);
}

void widen(const float16* from, std::int64_t count, float* to, bool use_avx2) {
    widen_all(from, count, to, use_avx2);
}

}  // namespace goldstick
