// Keys and values of a cache as floats.
#pragma once

#include <cstdint>

#include "base/floats.hpp"

namespace goldstick {

// to[i] = from[i], exactly.
void widen(const std::int8_t* from, std::int64_t count, float* to, bool use_avx2);
void widen(const bfloat16* from, std::int64_t count, float* to, bool use_avx2);
void widen(const float16* from, std::int64_t count, float* to, bool use_avx2);

}  // namespace goldstick
