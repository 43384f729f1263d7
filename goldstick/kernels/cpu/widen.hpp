// Codes of a cache as floats.
#pragma once

#include <cstdint>

namespace goldstick {

// to[i] = codes[i].
void widen(const std::int8_t* codes, std::int64_t count, float* to, bool use_avx2);

}  // namespace goldstick
