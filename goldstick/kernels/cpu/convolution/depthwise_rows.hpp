// Depthwise convolutions of images whose channels are last: rows of codes, and what one row of the output is made of.
//
// A row of codes is [pixel][slot] of 16 bits, a slot for each channel and zeros up to a whole number of blocks. Within a
// block of two vectors of channels the codes lie as packing leaves them (slot_of()), so that interleaving the codes of
// two taps, 128 bits at a time, puts the channels in order: the lower halves give the first vector's products, the upper
// ones the second's.
#pragma once

#include <cstdint>

#include "convolution/convolution.hpp"
#include "convolution/image_ranges.hpp"

namespace goldstick {

// Where channel `channel` of a block of twice `lanes` channels lies.
inline std::int64_t slot_of(std::int64_t channel, std::int64_t lanes) {
    const std::int64_t half = channel / lanes, within = channel % lanes;
    return within / 4 * 8 + half * 4 + within % 4;
}

// What one row of the output reads and writes.
struct OutputRow {
    const std::int16_t* const* rows;  // of codes, one for each row of the kernel, from the first pixel it reads on
    const std::int16_t* taps;         // [pair of positions][tap slot][2]
    std::int64_t tap_slots;
    std::int64_t slots;               // of a pixel
    std::int64_t columns, channels;   // of the output
    const float *by, *shift;          // [slots]
    float least, most;                // bounds of the output
    bool past_caches;
    float* y;                         // [column][channel]
};

// The kernels of a set of instructions. A block has twice `lanes` channels.
struct RowKernels {
    std::int64_t lanes;
    // The codes of some pixels, and zeros where a block has no channel. Returns whether all are numbers.
    bool (*lay)(const float* x, std::int64_t pixels, std::int64_t channels, const ImageScale& how, std::int16_t* to);
    // The same of bytes (coded_images.hpp), each `shift` more than the code less the zero.
    void (*lay_bytes)(const std::uint8_t* x, std::int64_t pixels, std::int64_t channels, std::int16_t shift, std::int16_t* to);
    void (*multiply)(const ConvolutionShape& shape, const OutputRow& row);
};
extern const RowKernels kRowsScalar, kRowsAvx2, kRowsAvx512;
const RowKernels& row_kernels(Isa isa);

// The whole call on `threads` threads.
template <typename T>
void convolve_rows(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa,
                   ImageRanges<T>& ranges, ImagesWithNone& none);

}  // namespace goldstick
