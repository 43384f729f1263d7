// Keys and values of a cache as floats.
#pragma once

#include <cstdint>

#include "base/floats.hpp"

namespace goldstick {

// A byte that holds a number of FP8 (E4M3), and one that holds two of four bits, the first in the low ones.
enum class Fp8 : std::uint8_t {};
enum class Nibbles : std::uint8_t {};

// What numbers of keys or values are: T, or codes. Those of int4, two in a byte, count steps from a minimum on.
enum class CacheCoding : std::uint8_t { none, int8, fp8, int4 };

// to[i] = from[i], exactly; `count` are elements of `from`.
void widen(const std::int8_t* from, std::int64_t count, float* to, bool use_avx2);
void widen(const Fp8* from, std::int64_t count, float* to, bool use_avx2);
void widen(const Nibbles* from, std::int64_t count, float* to, bool use_avx2);  // to has twice as many
// `count` elements of codes from the element `at` on.
void widen_codes(CacheCoding coding, const void* codes, std::int64_t at, std::int64_t count, float* to, bool use_avx2);
void widen(const bfloat16* from, std::int64_t count, float* to, bool use_avx2);
void widen(const float16* from, std::int64_t count, float* to, bool use_avx2);

}  // namespace goldstick
