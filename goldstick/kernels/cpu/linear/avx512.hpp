// Sixteen rows in one vector, with AVX-512 VNNI.
#pragma once

#include <cstdint>
#include <utility>

#include "base/inline.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#define GOLDSTICK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define GOLDSTICK_UNROLL _Pragma("GCC unroll 16")  // whole: sums in an array stay in registers only then

namespace goldstick {
namespace {

// Add the products of each row's codes and one token's activations: two columns of 16 bits, or four of 8.
template <bool in_bytes>
GOLDSTICK_AVX512 inline __m512i add_products(__m512i sum, __m512i codes, std::int32_t q) {
    const __m512i values = _mm512_set1_epi32(q);
    return in_bytes ? _mm512_dpbusd_epi32(sum, codes, values) : _mm512_dpwssd_epi32(sum, codes, values);
}

// Whether sums begin with the token's shift, which is then known: their span is one chunk, of a weight without zeros.
inline bool begins_shifted(const Chunk& chunk, const float* zero) { return chunk.opens && chunk.closes && !zero; }

// The products of a span less the zeros', in units of both scales.
GOLDSTICK_AVX512 inline __m512 centred(__m512i product, bool shifted, const float* zero, std::int32_t shift) {
    if (shifted) {
        return _mm512_cvtepi32_ps(product);
    }
    if (zero) {
        const __m512 of_zeros = _mm512_mul_ps(_mm512_loadu_ps(zero), _mm512_set1_ps(static_cast<float>(shift)));
        return _mm512_sub_ps(_mm512_cvtepi32_ps(product), of_zeros);
    }
    return _mm512_cvtepi32_ps(_mm512_add_epi32(product, _mm512_set1_epi32(shift)));
}

// What they add to a result.
GOLDSTICK_AVX512 inline __m512 scaled(__m512 centred, __m512 weight_scale, float scale) {
    return _mm512_mul_ps(centred, _mm512_mul_ps(weight_scale, _mm512_set1_ps(scale)));
}

}  // namespace
}  // namespace goldstick

#endif
