// Outputs of dense convolutions, channel by channel, with AVX-512.
#pragma once

#include <cstdint>

#include "convolution/convolution.hpp"
#include "convolution/sums.hpp"

namespace goldstick {

// `y` is that of the first channel and pixel, and `pixels` lie between it and the next channel's.
void write_planes_avx512(const Sums& sums, const Finish& finish, std::int64_t pixels, float* y);

}  // namespace goldstick
