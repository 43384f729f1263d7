// The floats that layers compute in. Those of 16 bits are torch's, without torch: stored in 16 bits, worked on as floats.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/inline.hpp"

namespace goldstick {

// The upper half of a float.
struct bfloat16 {
    std::uint16_t bits;
};

// IEEE 754's half precision: five bits of exponent, ten of mantissa.
struct float16 {
    std::uint16_t bits;
};

enum class Precision { float32, bfloat16, float16 };

template <typename T>
constexpr Precision kPrecision = Precision::float32;
template <>
inline constexpr Precision kPrecision<bfloat16> = Precision::bfloat16;
template <>
inline constexpr Precision kPrecision<float16> = Precision::float16;

// The distance from 1 to the next number.
template <typename T>
constexpr float kEpsilon = 0x1p-23f;
template <>
inline constexpr float kEpsilon<bfloat16> = 0x1p-7f;
template <>
inline constexpr float kEpsilon<float16> = 0x1p-10f;

inline Precision precision_of(const std::string& name) {
    if (name == "float32") return Precision::float32;
    if (name == "bfloat16") return Precision::bfloat16;
    if (name == "float16") return Precision::float16;
    throw std::invalid_argument("precision is '" + name + "', expected float32, bfloat16 or float16");
}

// Which of three, instances of one template as a rule, is that of a precision.
template <typename Any>
Any choose(Precision precision, Any of_float, Any of_bfloat16, Any of_float16) {
    return precision == Precision::float32 ? of_float : precision == Precision::bfloat16 ? of_bfloat16 : of_float16;
}

GOLDSTICK_INLINE std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

GOLDSTICK_INLINE float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

GOLDSTICK_INLINE float to_float(float value) { return value; }

GOLDSTICK_INLINE float to_float(bfloat16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }

GOLDSTICK_INLINE float to_float(float16 value) {
    const std::uint32_t size = value.bits & 0x7fffu, sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t normal = (size << 13) + (size >= 0x7c00u ? 0x70000000u : 0x38000000u);  // other exponents
    const std::uint32_t subnormal = bits_of(float_of(0x3f000000u | size) - 0.5f);  // steps of 2^-24, a float's at 0.5
    return float_of(sign | (size < 0x400u ? subnormal : normal));
}

// `value` rounded to the nearest number of T, ties to even, still as a float. What is no number stays none.
template <typename T>
float round_to(float value);

template <>
GOLDSTICK_INLINE float round_to<float>(float value) {
    return value;
}

template <>
GOLDSTICK_INLINE float round_to<bfloat16>(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    return float_of((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : rounded);  // NaN as torch writes it
}

template <>
GOLDSTICK_INLINE float round_to<float16>(float value) {
    const std::uint32_t bits = bits_of(value), sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
    const std::uint32_t normal = (size + 0x0fffu + ((size >> 13) & 1u)) & 0xffffe000u;
    const std::uint32_t subnormal = bits_of((float_of(size) + 0.5f) - 0.5f);  // below 2^-14 the steps are 2^-24
    const std::uint32_t finite = size < 0x38800000u ? subnormal : normal;
    const std::uint32_t infinite = size > 0x7f800000u ? 0x7fc00000u : 0x7f800000u;
    return float_of(sign | (size >= 0x477ff000u ? infinite : finite));  // from 65520 on
}

// Store what round_to() gave.
GOLDSTICK_INLINE void store(float* out, float value) { *out = value; }

GOLDSTICK_INLINE void store(bfloat16* out, float rounded) {
    out->bits = static_cast<std::uint16_t>(bits_of(rounded) >> 16);
}

GOLDSTICK_INLINE void store(float16* out, float rounded) {
    const std::uint32_t bits = bits_of(rounded), size = bits & 0x7fffffffu;
    const std::uint32_t normal = (size - (size >= 0x7f800000u ? 0x70000000u : 0x38000000u)) >> 13;
    const std::uint32_t subnormal = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    out->bits = static_cast<std::uint16_t>(((bits >> 16) & 0x8000u) | (size < 0x38800000u ? subnormal : normal));
}

}  // namespace goldstick
