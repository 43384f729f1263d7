#include "widen.hpp"

#include "inline.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace goldstick {

namespace {

#if defined(__x86_64__)
// Eight codes come from memory as integers in one operation; of more, which compilers take, each eight need two.
GOLDSTICK_AVX2 std::int64_t widen_eights(const std::int8_t* codes, std::int64_t count, float* to) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i));
        _mm256_storeu_ps(to + i, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)));
    }
    return i;
}
#else
std::int64_t widen_eights(const std::int8_t*, std::int64_t, float*) { return 0; }
#endif

}  // namespace

void widen(const std::int8_t* codes, std::int64_t count, float* to, bool use_avx2) {
    std::int64_t i = use_avx2 ? widen_eights(codes, count, to) : 0;
    for (; i < count; ++i) to[i] = static_cast<float>(codes[i]);
}

}  // namespace goldstick
