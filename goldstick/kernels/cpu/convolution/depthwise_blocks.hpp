// Depthwise convolutions of small images that lie channel by channel, several channels side by side.
#pragma once

#include <cstdint>

#include "convolution/convolution.hpp"
#include "convolution/depthwise_rows.hpp"
#include "convolution/image_ranges.hpp"

namespace goldstick {

// Whether a call whose channels are not last does: one of small images, on vectors.
bool goes_by_blocks(const ConvolutionShape& shape, const ConvolutionCall<float>& call, Isa isa);

// The whole call on `threads` threads.
void convolve_blocks(const ConvolutionWeight& weight, const ConvolutionCall<float>& call, int threads, Isa isa,
                     ImageRanges<float>& ranges, ImagesWithNone& none);

}  // namespace goldstick
