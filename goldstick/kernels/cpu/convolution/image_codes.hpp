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

// q = round(clamp(x / scale + zero, −128, 127)) − zero; of 16 bits, round(x / scale). Returns whether all are numbers.
template <typename T>
GOLDSTICK_INLINE bool codes_of(const T* x, std::int64_t count, const ImageScale& how, std::int16_t* q) {
    if (how.scale != how.scale) {
        std::fill_n(q, count, std::int16_t{0});
        return true;
    }
    bool numbers = true;
    for (std::int64_t i = 0; i < count; ++i) {
        const float value = to_float(x[i]);
        numbers = numbers && value == value;
        q[i] = how.rounding == Rounding::kInt16
                   ? static_cast<std::int16_t>(static_cast<std::int32_t>(to_even(value * how.factor)))
                   : code_by_quotient<T>(value, how);
    }
    return numbers;
}

constexpr float kNearMiddle = 0.4998f;  // a product with the inverse is off by less than 2^-13 where codes are

#if defined(__x86_64__)

// The same with AVX2. A product with the inverse is the quotient but where it lies near the middle between two codes:
// such values are divided. With `packed`, every sixteen codes (there are no others) lie as packing leaves them:
// 0 … 3, 8 … 11, 4 … 7, 12 … 15.
template <bool packed>
GOLDSTICK_AVX2 inline bool codes_of_floats(const float* x, std::int64_t count, const ImageScale& how, std::int16_t* q) {
    if (how.scale != how.scale) {
        std::fill_n(q, count, std::int16_t{0});
        return true;
    }
    const bool whole = how.rounding == Rounding::kInt16;
    const bool divides = !whole && !(how.factor < 0x1p100f && how.factor > 0x1p-100f);
    const __m256 factor = _mm256_set1_ps(how.factor), zero = _mm256_set1_ps(how.zero);
    const auto shift = static_cast<std::int16_t>(how.zero);
    const __m256i least = _mm256_set1_epi16(whole ? -32768 : static_cast<std::int16_t>(-128 - shift));
    const __m256i most = _mm256_set1_epi16(whole ? 32767 : static_cast<std::int16_t>(127 - shift));
    // The nearest whole numbers, and where they are not so beyond doubt, or what they are made of is no number.
    const auto nearest = [&](__m256 values, __m256& doubtful) GOLDSTICK_AVX2 {
        const __m256 value = _mm256_add_ps(_mm256_mul_ps(values, factor), zero);
        const __m256i rounded = _mm256_cvtps_epi32(value);
        const __m256 size = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
        const __m256 off = _mm256_and_ps(_mm256_sub_ps(value, _mm256_cvtepi32_ps(rounded)), size);
        doubtful = _mm256_cmp_ps(off, _mm256_set1_ps(kNearMiddle), _CMP_NLE_UQ);
        return rounded;
    };
    const auto divided = [&](__m256 values) GOLDSTICK_AVX2 {
        const __m256 value = _mm256_add_ps(_mm256_div_ps(values, _mm256_set1_ps(how.scale)), zero);
        const __m256 above = _mm256_max_ps(value, _mm256_set1_ps(-128.0f));
        return _mm256_cvtps_epi32(_mm256_min_ps(above, _mm256_set1_ps(127.0f)));
    };
    bool numbers = true;
    const auto sixteen = [&](__m256 low, __m256 high) GOLDSTICK_AVX2 {
        __m256 doubtful, other;
        __m256i first = nearest(low, doubtful), second = nearest(high, other);
        if (!whole && (divides || _mm256_movemask_ps(_mm256_or_ps(doubtful, other)))) {
            const __m256 none =
                _mm256_or_ps(_mm256_cmp_ps(low, low, _CMP_UNORD_Q), _mm256_cmp_ps(high, high, _CMP_UNORD_Q));
            numbers = numbers && !_mm256_movemask_ps(none);
            first = divided(low), second = divided(high);
        }
        const __m256i both = _mm256_packs_epi32(first, second);
        const __m256i ordered = packed ? both : _mm256_permute4x64_epi64(both, 0xd8);
        const __m256i shifted = _mm256_subs_epi16(ordered, _mm256_set1_epi16(shift));
        return _mm256_max_epi16(_mm256_min_epi16(shifted, most), least);
    };
    std::int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i),
                            sixteen(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i + 8)));
    }
    if (i < count) {
        alignas(32) float last[16] = {};
        alignas(32) std::int16_t few[16];
        std::copy_n(x + i, count - i, last);
        _mm256_store_si256(reinterpret_cast<__m256i*>(few), sixteen(_mm256_load_ps(last), _mm256_load_ps(last + 8)));
        std::copy_n(few, count - i, q + i);
    }
    return numbers;
}
#endif

template <typename T, bool packed = false>
GOLDSTICK_AVX2 bool codes_avx2(const T* x, std::int64_t count, const ImageScale& how, std::int16_t* q) {
#if defined(__x86_64__)
    if constexpr (std::is_same_v<T, float>) {
        return codes_of_floats<packed>(x, count, how, q);
    }
#endif
    return codes_of(x, count, how, q);
}
template <typename T>
bool codes_scalar(const T* x, std::int64_t count, const ImageScale& how, std::int16_t* q) {
    return codes_of(x, count, how, q);
}
template <bool wide, typename T>
GOLDSTICK_INLINE bool codes_for(const T* x, std::int64_t count, const ImageScale& how, std::int16_t* q) {
    if constexpr (wide) {
        return codes_avx2(x, count, how, q);
    } else {
        return codes_scalar(x, count, how, q);
    }
}

constexpr std::int32_t kNoNumber = 0x7fc00000;  // bits that image_scale() takes for an image with what is no number

}  // namespace goldstick
