// Eight codes at a time. Whatever their width, eight codes fill exactly `bits` bytes: one 64-bit load, spread over
// 64-bit lanes by variable shifts, gives all of them.
#include "codes/dequantize.hpp"
#include "base/inline.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

// The eight codes that start at `at`, as eight 32-bit integers in order. Reads no byte from `end` on.
template <int bits>
GOLDSTICK_AVX2 inline __m256i load_codes(const std::uint8_t* at, const std::uint8_t* end) {
    if constexpr (bits == 4) {
        std::uint32_t word;
        std::memcpy(&word, at, 4);
        const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const __m256i spread = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(word)), shifts);
        return _mm256_and_si256(spread, _mm256_set1_epi32(15));
    } else if constexpr (bits == 8) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    } else {
        std::uint64_t octet = 0;
        if (end - at >= 8) {
            std::memcpy(&octet, at, 8);
        } else {
            std::memcpy(&octet, at, bits);
        }
        const __m256i all = _mm256_set1_epi64x(static_cast<long long>(octet));
        const __m256i mask = _mm256_set1_epi64x((1 << bits) - 1);
        const __m256i even = _mm256_srlv_epi64(all, _mm256_setr_epi64x(0, 2 * bits, 4 * bits, 6 * bits));
        const __m256i odd = _mm256_srlv_epi64(all, _mm256_setr_epi64x(bits, 3 * bits, 5 * bits, 7 * bits));
        return _mm256_or_si256(_mm256_and_si256(even, mask),
                               _mm256_slli_epi64(_mm256_and_si256(odd, mask), 32));
    }
}

// Each float rounded to the precision of bfloat16, as 32-bit patterns.
GOLDSTICK_AVX2 inline __m256i round_bits(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i kept = _mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(kept, _mm256_set1_epi32(0x7fc00000), is_nan);
}

GOLDSTICK_AVX2 inline void write(float* out, __m256 centred, __m256 scale, __m256 minimum) {
    _mm256_storeu_ps(out, _mm256_sub_ps(_mm256_mul_ps(centred, scale), minimum));
}

GOLDSTICK_AVX2 inline void write(bfloat16* out, __m256 centred, __m256 scale, __m256 minimum) {
    const __m256 rounded = _mm256_castsi256_ps(round_bits(centred));
    const __m256i product = _mm256_srli_epi32(round_bits(_mm256_sub_ps(_mm256_mul_ps(rounded, scale), minimum)), 16);
    const __m128i halves =
        _mm_packus_epi32(_mm256_castsi256_si128(product), _mm256_extracti128_si256(product, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), halves);
}

GOLDSTICK_AVX2 inline __m128i to_halves(__m256 value) {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

GOLDSTICK_AVX2 inline void write(float16* out, __m256 centred, __m256 scale, __m256 minimum) {
    const __m256 rounded = _mm256_cvtph_ps(to_halves(centred));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), to_halves(_mm256_sub_ps(_mm256_mul_ps(rounded, scale), minimum)));
}

template <int bits, typename T>
GOLDSTICK_AVX2 std::int64_t dequantize_octets(const Segment<T>& segment) {
    const __m256 zero = _mm256_set1_ps(segment.zero);
    const __m256 scale = _mm256_set1_ps(segment.scale), minimum = _mm256_set1_ps(segment.minimum);
    const std::uint8_t* end = segment.stream + segment.stream_bytes;
    std::int64_t i = segment.begin;
    for (; i + 8 <= segment.end; i += 8) {
        const __m256i codes = load_codes<bits>(segment.stream + i / 8 * bits, end);
        write(segment.out + i, _mm256_sub_ps(_mm256_cvtepi32_ps(codes), zero), scale, minimum);
    }
    return i;
}

}  // namespace

template <typename T>
std::int64_t dequantize_avx2(const Segment<T>& segment, int bits) {
    if (segment.begin % 8 != 0) {
        return segment.begin;  // groups whose codes start inside a byte go one by one
    }
    switch (bits) {
        case 1: return dequantize_octets<1>(segment);
        case 2: return dequantize_octets<2>(segment);
        case 3: return dequantize_octets<3>(segment);
        case 4: return dequantize_octets<4>(segment);
        case 5: return dequantize_octets<5>(segment);
        case 6: return dequantize_octets<6>(segment);
        case 7: return dequantize_octets<7>(segment);
        case 8: return dequantize_octets<8>(segment);
        default: return segment.begin;
    }
}

#else

namespace goldstick {

template <typename T>
std::int64_t dequantize_avx2(const Segment<T>& segment, int) {
    return segment.begin;
}

#endif

template std::int64_t dequantize_avx2<float>(const Segment<float>&, int);
template std::int64_t dequantize_avx2<bfloat16>(const Segment<bfloat16>&, int);
template std::int64_t dequantize_avx2<float16>(const Segment<float16>&, int);

}  // namespace goldstick
