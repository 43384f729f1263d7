// y = f(x) ∗ w + bias on integers: convolutions with one scale for each output channel and no zeros.
//
// An image's activations become integers q with one scale, of 8 bits or of 16; the weight is signed codes c. For one
// output of channel o,
//
//     y = (Σ over spans  Σ c·q) · (weight scale of o · activation scale) + bias of o, kept within bounds,
//
// in float32, one rounding for each operation written here. The sum within a span is exact in 32 bits, so it may be taken
// in any order; spans follow each other along (kernel row, kernel column, channel). Every path (portable or vector, any
// number of threads, either order in memory) therefore gives the same bits. Padding counts as x = 0, whose code is 0:
// q is the code less the zero of its range. These files must be compiled without contraction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/buffer.hpp"
#include "base/isa.hpp"
#include "linear/linear.hpp"

namespace goldstick {

constexpr std::int64_t kConvolutionPixels = 48;  // most pixels whose sums are laid down together
constexpr std::int64_t kSpan16 = 512;  // products of codes and 16-bit activations fit into 32 bits
constexpr std::int64_t kSpan8 = 32768;
constexpr std::int64_t kDepthwisePositions = kSpan16;  // most that a depthwise kernel has

// The sizes of a convolution; one along the last side only has kernels of height 1.
struct ConvolutionShape {
    std::int64_t in, out, groups;
    std::int64_t kernel_rows, kernel_columns;
    std::int64_t stride_rows, stride_columns;
    std::int64_t dilation_rows, dilation_columns;
    std::int64_t top, bottom, left, right;  // padding

    std::int64_t group_in() const { return in / groups; }
    std::int64_t group_out() const { return out / groups; }
    std::int64_t positions() const { return kernel_rows * kernel_columns; }
    bool depthwise() const { return groups > 1 && group_in() == 1; }
    bool padded() const { return top || bottom || left || right; }
    // Channels are multiplied so many together. A pixel has room for whole steps of each group; where all pixels that a row
    // of the kernel reads are neighbours, and few, their channels follow each other without gaps instead.
    bool gapless(int together) const {
        return groups == 1 && dilation_columns == 1 && in % together != 0 && in * positions() <= kSpan16;
    }
    std::int64_t group_slots(int together) const {
        return gapless(together) ? in : (group_in() + together - 1) / together * together;
    }
    std::int64_t slots(int together) const { return groups * group_slots(together); }
    // Of a row of the kernel.
    std::int64_t row_steps(int together) const {
        return (kernel_columns * group_slots(together) + together - 1) / together;
    }
    std::int64_t blocks_of_group() const { return (group_out() + kRows - 1) / kRows; }
    std::int64_t blocks() const { return groups * blocks_of_group(); }
    // Of the 16 output channels of a block the first, and how many there are.
    std::int64_t first_channel(std::int64_t block) const {
        return block / blocks_of_group() * group_out() + block % blocks_of_group() * kRows;
    }
    std::int64_t channels_of(std::int64_t block) const {
        return std::min<std::int64_t>(kRows, group_out() - block % blocks_of_group() * kRows);
    }
    std::int64_t end_channel(std::int64_t block) const { return first_channel(block) + channels_of(block); }
    std::int64_t tap_pairs() const { return (kernel_columns + 1) / 2; }
    std::int64_t tap_slots() const { return (out + 31) / 32 * 32; }  // whole vectors of channels
    std::int64_t rows_of(std::int64_t height) const {
        return (height + top + bottom - dilation_rows * (kernel_rows - 1) - 1) / stride_rows + 1;
    }
    std::int64_t columns_of(std::int64_t width) const {
        return (width + left + right - dilation_columns * (kernel_columns - 1) - 1) / stride_columns + 1;
    }
};

// Whether activations are best kept in bytes, with so many products in a sum.
bool takes_bytes(Rounding rounding, std::int64_t products);

// The signed codes of a weight as the kernels take them.
class ConvolutionWeight {
public:
    // `packed` is [out, row_bytes], of columns (channel of the group, kernel row, kernel column). `in_bytes` says that
    // activations are bytes, four of which are multiplied together, and not of 16 bits by twos.
    ConvolutionWeight(const ConvolutionShape& shape, const std::uint8_t* packed, std::int64_t row_bytes, int bits,
                      bool in_bytes);

    ConvolutionShape shape;
    int together;               // channels: 2, or 4
    Buffer<std::int8_t> codes;  // [block][kernel row][step][kRows][together]; empty where it is depthwise
    Buffer<std::int32_t> sums;  // of a channel's codes: [block][kRows]; likewise
    Buffer<std::int16_t> taps;  // [out][kernel row][pair of kernel columns][2]; empty where it is not
    Buffer<std::int16_t> side_taps;  // the same [pair of positions][tap_slots][2], for channels that are last

    std::int64_t block_codes() const { return shape.kernel_rows * shape.row_steps(together) * together * kRows; }
};

// Outputs as the codes that the next convolution reads, by the scale and the zero of its input (coded_images.hpp).
struct CodedOutput {
    std::uint8_t* codes;  // null where outputs are floats
    float scale, zero;
};

// One call; all arrays are dense. T is float, bfloat16 or float16. Where the channels of a depthwise convolution's input are
// last, those of its output are; codes have them last, and belong to floats.
template <typename T>
struct ConvolutionCall {
    const T* x;      // [images, in, height, width], or [images, height, width, in]
    T* y;            // likewise
    const T* scale;  // [out]
    const T* bias;   // [out], or null
    std::int64_t images, height, width;
    bool x_last, y_last;  // whether the channels are
    Rounding rounding;
    float input_scale;  // of kInt8Tensor
    float input_zero;
    float least, most;  // bounds of outputs, which an activation behind the convolution may set
    const std::uint8_t* codes;  // in the place of x, of kInt8Tensor, by its scale and zero; or null
    CodedOutput coded;          // in the place of y
};

// Neighbouring steps: of the panel, and of every pixel from `offset` on.
struct Run {
    std::int64_t offset, steps;
    bool closes;  // whether it is the last of its span
};

// What the sums of 16 output channels become: y = sum · by + shift within the bounds of the call.
struct Finish {
    const float *by, *shift;  // [kRows], or [block][kRows]
    float least, most;
    bool past_caches;
};
// What is no number is in no order, and stays.
inline float finished(float sum, float by, float shift, float least, float most) {
    const float y = sum * by + shift, above = y < least ? least : y;
    return above > most ? most : above;
}

// Where tiles write outputs themselves: those of a pixel, and from there to the next pixel's.
struct PixelOutputs {
    float* y;
    std::int64_t step;
    Finish finish;
};

// Sums of 16 output channels, or of 32, for `count` pixels, at most kConvolutionPixels: float [block][pixel][kRows], with
// kConvolutionPixels of a block.
template <typename Code>
struct TileCall {
    const std::int8_t* panel;         // [step][kRows][channels of a step]
    std::int64_t blocks, block_codes;  // of 16 channels: 1, or with AVX-512 2 of a group; from one's panel to the next
    const std::vector<Run>& runs;
    const Code* const* pixels;        // as the first group of channels begins
    std::int64_t group;               // from there to the group
    const std::int32_t* begin;        // what the sums of a span begin with: [block][kRows]
    std::int64_t count;
    std::int64_t channels;            // that there are: sums of others may be left alone
    float* sums;
    const PixelOutputs* outputs;      // instead of sums, where there is one span; or null
};
template <typename Code>
using ConvolutionTiles = void(const TileCall<Code>& call);
ConvolutionTiles<std::int16_t> convolution_tiles_scalar, convolution_tiles_avx2, convolution_tiles_avx512;
ConvolutionTiles<std::uint8_t> byte_tiles_scalar, byte_tiles_avx512;

// At most `most`, so that parts are as large as each other.
inline std::int64_t evenly(std::int64_t whole, std::int64_t most) {
    const std::int64_t parts = (whole + most - 1) / most;
    return (whole + parts - 1) / parts;
}

// Sums of one channel by its taps for all pixels of a plane [rows, columns] of codes, which may be read a vector beyond
// its end: int32 [rows of the output, columns of the output].
struct Plane {
    const std::int16_t* codes;
    std::int64_t columns;            // of a row of codes
    std::int64_t out_rows, out_columns;
};
using PlaneKernel = void(const ConvolutionShape& shape, const std::int16_t* taps, const Plane& plane, std::int32_t* sums);
PlaneKernel plane_scalar, plane_avx2;

// The whole call on `threads` threads. Returns whether it was done: codes cannot be made of what is no number.
template <typename T>
bool convolve(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa);

}  // namespace goldstick
