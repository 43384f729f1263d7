// Activations of an image to integers, shared by the kernels of convolutions; compiled for the instructions of each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/floats.hpp"
#include "base/inline.hpp"
#include "convolution/convolution.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace goldstick {

// How the activations of one image are rounded.
struct ImageScale {
    Rounding rounding;
    float scale;  // not a number where a number of the image is none, or where it needs to be finite and is not
    float zero;
    float factor;  // 1 / scale
};

// The scale of an image from the bits of its largest |x|, as that of a token is found.
template <typename T>
inline ImageScale image_scale(const ConvolutionCall<T>& call, std::int32_t largest) {
    constexpr std::int32_t kInfinity = 0x7f800000;
    constexpr float kLargest16 = 32639.0f, kLeastScale = 0x1p-120f;
    const float nan = std::numeric_limits<float>::quiet_NaN(), found = float_of(static_cast<std::uint32_t>(largest));
    float scale = call.input_scale;
    if (call.rounding == Rounding::kInt8Tensor) {
        scale = largest > kInfinity ? nan : scale;
    } else if (largest >= kInfinity) {
        scale = nan;
    } else if (call.rounding == Rounding::kInt16) {
        scale = std::max(found / kLargest16, kLeastScale);
    } else {
        scale = round_to<T>(found / 127.5f);
        scale = scale != 0.0f ? scale : kEpsilon<T>;
    }
    return {call.rounding, scale, call.rounding == Rounding::kInt8Tensor ? call.input_zero : 0.0f, 1.0f / scale};
}

GOLDSTICK_INLINE float to_even(float value) {
    constexpr float kMagic = 12582912.0f;  // adding 1.5 · 2^23 leaves no room for a fraction
    return (value + kMagic) - kMagic;
}

// The code less the zero of one value, by division.
template <typename T>
GOLDSTICK_INLINE std::int16_t code_by_quotient(float x, const ImageScale& how) {
    float value = round_to<T>(round_to<T>(x / how.scale) + how.zero);
    value = value > -128.0f ? value : -128.0f;
    value = value < 127.0f ? value : 127.0f;
    return static_cast<std::int16_t>(static_cast<std::int32_t>(to_even(value) - how.zero));
}

// A code less the zero, as it is kept: in 16 bits as it is; a byte is the code itself, and 128.
template <typename Code>
GOLDSTICK_INLINE Code kept_as(std::int16_t centred, const ImageScale& how) {
    return static_cast<Code>(sizeof(Code) == 1 ? centred + static_cast<std::int16_t>(how.zero) + 128 : centred);
}

// q = round(clamp(x / scale + zero, −128, 127)) − zero; of 16 bits, round(x / scale). Returns whether all are numbers.
template <typename T, typename Code>
GOLDSTICK_INLINE bool codes_of(const T* x, std::int64_t count, const ImageScale& how, Code* q) {
    if (how.scale != how.scale) {
        std::fill_n(q, count, kept_as<Code>(0, how));
        return true;
    }
    bool numbers = true;
    for (std::int64_t i = 0; i < count; ++i) {
        const float value = to_float(x[i]);
        numbers = numbers && value == value;
        q[i] = how.rounding == Rounding::kInt16
                   ? static_cast<Code>(static_cast<std::int32_t>(to_even(value * how.factor)))
                   : kept_as<Code>(code_by_quotient<T>(value, how), how);
    }
    return numbers;
}

// Numbers that memory is called for ahead of rows: those that are laid next, while others are multiplied.
constexpr std::int64_t kAhead = 4096;
constexpr float kNearMiddle = 0.4998f;  // a product with the inverse is off by less than 2^-13 where codes are

#if defined(__x86_64__)

// Floats to codes, the zero with them, sixteen at a time. A product with the inverse is the quotient but where it lies
// near the middle between two codes: such values are divided. `whole`: of 16 bits.
template <bool whole>
class Rounder {
public:
    GOLDSTICK_AVX2 explicit Rounder(const ImageScale& how)
        : divides_(!(how.factor < 0x1p100f && how.factor > 0x1p-100f)), factor_(_mm256_set1_ps(how.factor)),
          scale_(_mm256_set1_ps(how.scale)), zero_(_mm256_set1_ps(how.zero)) {}

    // They lie as packing leaves them: 0 … 3, 8 … 11, 4 … 7, 12 … 15. Of 8 bits they are still to be clamped.
    GOLDSTICK_AVX2 GOLDSTICK_INLINE __m256i operator()(const float* x, bool& numbers) const {
        const __m256 low = _mm256_loadu_ps(x), high = _mm256_loadu_ps(x + 8);
        const __m256 one = _mm256_fmadd_ps(low, factor_, zero_), other = _mm256_fmadd_ps(high, factor_, zero_);
        __m256i first = _mm256_cvtps_epi32(one), second = _mm256_cvtps_epi32(other);
        if constexpr (!whole) {
            if (divides_ || doubtful(one, first, other, second)) {
                const __m256 none =
                    _mm256_or_ps(_mm256_cmp_ps(low, low, _CMP_UNORD_Q), _mm256_cmp_ps(high, high, _CMP_UNORD_Q));
                numbers = numbers && !_mm256_movemask_ps(none);
                first = divided(low), second = divided(high);
            }
        }
        return _mm256_packs_epi32(first, second);
    }

private:
    // Whether one of the values may have another nearest whole number than its quotient, or is no number: its bits are
    // the largest then.
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static bool doubtful(__m256 one, __m256i first, __m256 other, __m256i second) {
        const __m256i off = _mm256_max_epi32(size(_mm256_sub_ps(one, _mm256_cvtepi32_ps(first))),
                                             size(_mm256_sub_ps(other, _mm256_cvtepi32_ps(second))));
        const __m256i near = _mm256_cmpgt_epi32(off, _mm256_castps_si256(_mm256_set1_ps(kNearMiddle)));
        return _mm256_movemask_ps(_mm256_castsi256_ps(near)) != 0;
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE static __m256i size(__m256 x) {
        return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
    }
    GOLDSTICK_AVX2 GOLDSTICK_INLINE __m256i divided(__m256 x) const {
        const __m256 value = _mm256_add_ps(_mm256_div_ps(x, scale_), zero_);
        const __m256 above = _mm256_max_ps(value, _mm256_set1_ps(-128.0f));
        return _mm256_cvtps_epi32(_mm256_min_ps(above, _mm256_set1_ps(127.0f)));
    }

    bool divides_;
    __m256 factor_, scale_, zero_;
};

// codes_of() with AVX2. With `packed`, every sixteen codes of 16 bits (there are no others) lie as packing leaves them.
template <bool whole, bool packed>
GOLDSTICK_AVX2 inline bool codes_in_words(const float* x, std::int64_t count, const ImageScale& how, std::int16_t* q) {
    const __m256i least = _mm256_set1_epi16(-128), most = _mm256_set1_epi16(127);
    const __m256i shift = _mm256_set1_epi16(static_cast<std::int16_t>(how.zero));
    const Rounder<whole> rounded(how);
    bool numbers = true;
    const auto sixteen = [&](const float* from, std::int16_t* to) GOLDSTICK_AVX2 {
        __m256i codes = rounded(from, numbers);
        if constexpr (!whole) {
            codes = _mm256_sub_epi16(_mm256_max_epi16(_mm256_min_epi16(codes, most), least), shift);
        }
        const __m256i ordered = packed ? codes : _mm256_permute4x64_epi64(codes, 0xd8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ordered);
    };
    std::int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        if constexpr (packed) {
            _mm_prefetch(reinterpret_cast<const char*>(x + i + kAhead), _MM_HINT_T0);
        }
        sixteen(x + i, q + i);
    }
    if (i < count) {
        alignas(32) float last[16] = {};
        alignas(32) std::int16_t few[16];
        std::copy_n(x + i, count - i, last);
        sixteen(last, few);
        std::copy_n(few, count - i, q + i);
    }
    return numbers;
}

template <bool packed>
GOLDSTICK_AVX2 inline bool codes_of_floats(const float* x, std::int64_t count, const ImageScale& how, std::int16_t* q) {
    const bool whole = how.rounding == Rounding::kInt16;
    return (whole ? codes_in_words<true, packed> : codes_in_words<false, packed>)(x, count, how, q);
}

// The same, in bytes.
template <bool packed>
GOLDSTICK_AVX2 inline bool codes_of_floats(const float* x, std::int64_t count, const ImageScale& how, std::uint8_t* q) {
    static_assert(!packed);
    const Rounder<false> rounded(how);
    bool numbers = true;
    const auto some = [&](const float* from, std::uint8_t* to) GOLDSTICK_AVX2 {
        const __m256i both = _mm256_packs_epi16(rounded(from, numbers), rounded(from + 16, numbers));
        const __m256i ordered = _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_xor_si256(ordered, _mm256_set1_epi8(-128)));
    };
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        some(x + i, q + i);
    }
    if (i < count) {
        alignas(32) float last[32] = {};
        alignas(32) std::uint8_t few[32];
        std::copy_n(x + i, count - i, last);
        some(last, few);
        std::copy_n(few, count - i, q + i);
    }
    return numbers;
}
#endif

template <typename T, typename Code, bool packed = false>
GOLDSTICK_AVX2 bool codes_avx2(const T* x, std::int64_t count, const ImageScale& how, Code* q) {
#if defined(__x86_64__)
    if constexpr (std::is_same_v<T, float>) {
        return how.scale == how.scale ? codes_of_floats<packed>(x, count, how, q) : codes_of(x, count, how, q);
    }
#endif
    return codes_of(x, count, how, q);
}
template <typename T, typename Code>
bool codes_scalar(const T* x, std::int64_t count, const ImageScale& how, Code* q) {
    return codes_of(x, count, how, q);
}
template <bool wide, typename T, typename Code>
GOLDSTICK_INLINE bool codes_for(const T* x, std::int64_t count, const ImageScale& how, Code* q) {
    if constexpr (wide) {
        return codes_avx2(x, count, how, q);
    } else {
        return codes_scalar(x, count, how, q);
    }
}

constexpr std::int32_t kNoNumber = 0x7fc00000;  // bits that image_scale() takes for an image with what is no number

}  // namespace goldstick
