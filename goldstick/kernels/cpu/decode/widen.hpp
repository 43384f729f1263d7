// Keys and values of a cache as floats.
#pragma once

#include <cstdint>

#include "base/floats.hpp"

namespace goldstick {

// A byte that holds a number of FP8 (E4M3), and one that holds two of four bits, the first in the low ones.
enum class Fp8 : std::uint8_t {};
enum class Nibbles : std::uint8_t {};

// to[i] = from[i], exactly; `count` are elements of `from`.
void widen(const std::int8_t* from, std::int64_t count, float* to, bool use_avx2);
void widen(const Fp8* from, std::int64_t count, float* to, bool use_avx2);
void widen(const Nibbles* from, std::int64_t count, float* to, bool use_avx2);  // to has twice as many
void widen(const bfloat16* from, std::int64_t count, float* to, bool use_avx2);
void widen(const float16* from, std::int64_t count, float* to, bool use_avx2);

}  // namespace goldstick
