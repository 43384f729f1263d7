// Floats to the bytes of coded images with AVX-512, 64 at a time.
#include <algorithm>

#include "convolution/coded_images.hpp"
#include "linear/avx512.hpp"

#if defined(__x86_64__)

namespace goldstick {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr int kVectors = 4;
constexpr std::int64_t kBlock = kLanes * kVectors;

// How numbers become bytes, as Rounder does it.
class ByteRounder {
public:
    GOLDSTICK_AVX512 explicit ByteRounder(const ImageScale& how)
        : divides_(!(how.factor < 0x1p100f && how.factor > 0x1p-100f)), factor_(_mm512_set1_ps(how.factor)),
          scale_(_mm512_set1_ps(how.scale)), zero_(_mm512_set1_ps(how.zero)) {}

    GOLDSTICK_AVX512 GOLDSTICK_INLINE void operator()(const __m512 (&x)[kVectors], __m128i (&bytes)[kVectors],
                                                      bool& numbers) const {
        __m512i codes[kVectors];
        __mmask16 doubtful = divides_;
        GOLDSTICK_UNROLL
        for (int i = 0; i < kVectors; ++i) {
            const __m512 value = _mm512_fmadd_ps(x[i], factor_, zero_);
            codes[i] = _mm512_cvtps_epi32(value);
            const __m512 off = _mm512_abs_ps(_mm512_sub_ps(value, _mm512_cvtepi32_ps(codes[i])));
            doubtful |= _mm512_cmp_ps_mask(off, _mm512_set1_ps(kNearMiddle), _CMP_NLE_UQ);  // or no number
        }
        if (__builtin_expect(doubtful != 0, 0)) {
            GOLDSTICK_UNROLL
            for (int i = 0; i < kVectors; ++i) {
                numbers = numbers && !_mm512_cmp_ps_mask(x[i], x[i], _CMP_UNORD_Q);
                const __m512 value = _mm512_add_ps(_mm512_div_ps(x[i], scale_), zero_);
                const __m512 above = _mm512_max_ps(value, _mm512_set1_ps(-128.0f));
                codes[i] = _mm512_cvtps_epi32(_mm512_min_ps(above, _mm512_set1_ps(127.0f)));
            }
        }
        GOLDSTICK_UNROLL
        for (int i = 0; i < kVectors; ++i) {
            bytes[i] = _mm_xor_si128(_mm512_cvtsepi32_epi8(codes[i]), _mm_set1_epi8(-128));
        }
    }

private:
    bool divides_;
    __m512 factor_, scale_, zero_;
};

}  // namespace

GOLDSTICK_AVX512 bool bytes_avx512(const float* x, std::int64_t count, const ImageScale& how, std::uint8_t* to) {
    const ByteRounder round(how);
    bool numbers = true;
    const auto block = [&](const float* from, std::uint8_t* bytes) GOLDSTICK_AVX512 {
        __m512 values[kVectors];
        __m128i rounded[kVectors];
        GOLDSTICK_UNROLL
        for (int i = 0; i < kVectors; ++i) {
            values[i] = _mm512_loadu_ps(from + i * kLanes);
        }
        round(values, rounded, numbers);
        GOLDSTICK_UNROLL
        for (int i = 0; i < kVectors; ++i) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i * kLanes), rounded[i]);
        }
    };
    std::int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock) {
        block(x + i, to + i);
    }
    if (i < count) {
        alignas(64) float last[kBlock] = {};
        alignas(64) std::uint8_t few[kBlock];
        std::copy_n(x + i, count - i, last);
        block(last, few);
        std::copy_n(few, count - i, to + i);
    }
    return numbers;
}

}  // namespace goldstick

#endif
