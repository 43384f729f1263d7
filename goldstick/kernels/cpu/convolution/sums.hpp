// Sums of products that become outputs.
#pragma once

#include <cstdint>

namespace goldstick {

// Sums of 16 channels and some pixels of one image.
struct Sums {
    std::int64_t image, pixel, count;
    std::int64_t channel, channels;
    const float* values;  // [count][kRows], in memory for kConvolutionPixels
};

}  // namespace goldstick
