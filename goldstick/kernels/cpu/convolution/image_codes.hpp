// Activations of an image to integers, shared by the kernels of convolutions; compiled for the instructions of each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/floats.hpp"
#include "base/inline.hpp"
#include "convolution/convolution.hpp"

namespace goldstick {

// How the activations of one image are rounded.
struct ImageScale {
    Rounding rounding;
    float scale;  // not a number where a number of the image is none, or where it needs to be finite and is not
    float zero;
    float factor;  // 1 / scale
};

// The bits of the largest |x|.
template <typename T>
GOLDSTICK_INLINE std::int32_t largest_of(const T* x, std::int64_t count) {
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, static_cast<std::int32_t>(bits_of(to_float(x[i])) & 0x7fffffffu));
    }
    return largest;
}

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

// q = round(clamp(x / scale + zero, −128, 127)) − zero; of 16 bits, round(x / scale). A product with the inverse is the
// quotient but where it lies near the middle between two codes; such runs are divided.
template <typename T>
GOLDSTICK_INLINE void codes_of(const T* x, std::int64_t count, const ImageScale& how, std::int16_t* q) {
    if (how.scale != how.scale) {
        std::fill_n(q, count, std::int16_t{0});
        return;
    }
    const float factor = how.factor, zero = how.zero;
    if (how.rounding == Rounding::kInt16) {
        for (std::int64_t i = 0; i < count; ++i) {
            q[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(to_even(to_float(x[i]) * factor)));
        }
        return;
    }
    if (sizeof(T) == sizeof(float) && factor < 0x1p100f && factor > 0x1p-100f) {
        constexpr float kNearMiddle = 0.4998f;  // the product is off by less than 2^-13 where codes are
        std::int32_t near = 0;
        for (std::int64_t i = 0; i < count; ++i) {
            float value = to_float(x[i]) * factor + zero;
            value = value > -129.0f ? value : -129.0f;
            value = value < 128.0f ? value : 128.0f;
            const float rounded = to_even(value);
            near |= std::fabs(value - rounded) > kNearMiddle ? 1 : 0;
            float code = rounded > -128.0f ? rounded : -128.0f;
            code = code < 127.0f ? code : 127.0f;
            q[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(code - zero));
        }
        if (!near) {
            return;
        }
    }
    for (std::int64_t i = 0; i < count; ++i) {
        q[i] = code_by_quotient<T>(to_float(x[i]), how);
    }
}

}  // namespace goldstick
