// y = f(x) ∗ w + bias on integers: convolutions with one scale for each output channel and no zeros.
//
// An image's activations become integers q with one scale, of 8 bits or of 16; the weight is signed codes c. For one
// output of channel o,
//
//     y = (Σ over spans  Σ c·q) · (weight scale of o · activation scale) + bias of o
//
// in float32, one rounding for each operation written here. The sum within a span is exact in 32 bits, so it may be taken
// in any order; spans follow each other along (kernel row, kernel column, channel). Every path (portable or vector, any
// number of threads, either order in memory) therefore gives the same bits. Padding counts as x = 0, whose code is 0:
// q is the code less the zero of its range. These files must be compiled without contraction.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.hpp"
#include "base/isa.hpp"
#include "linear/linear.hpp"

namespace goldstick {

constexpr std::int64_t kConvolutionTile = 6;    // most pixels whose sums stay in registers, with AVX2
constexpr std::int64_t kConvolutionTile512 = 12;
constexpr std::int64_t kConvolutionPixels = 48;  // most pixels whose sums are laid down together
constexpr std::int64_t kSpanPairs16 = 256;       // 512 products of codes and 16-bit activations fit into 32 bits
constexpr std::int64_t kSpanPairs8 = 16384;
constexpr std::int64_t kDepthwisePositions = 2 * kSpanPairs16;  // most that a depthwise kernel has

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
    std::int64_t pairs() const { return (group_in() + 1) / 2; }  // of channels of a group
    std::int64_t slots() const { return groups * pairs() * 2; }  // of a pixel
    std::int64_t blocks_of_group() const { return (group_out() + kRows - 1) / kRows; }
    std::int64_t tap_pairs() const { return (kernel_columns + 1) / 2; }
    std::int64_t tap_slots() const { return (out + 31) / 32 * 32; }  // whole vectors of channels
    std::int64_t rows_of(std::int64_t height) const {
        return (height + top + bottom - dilation_rows * (kernel_rows - 1) - 1) / stride_rows + 1;
    }
    std::int64_t columns_of(std::int64_t width) const {
        return (width + left + right - dilation_columns * (kernel_columns - 1) - 1) / stride_columns + 1;
    }
};

// The signed codes of a weight as the kernels take them.
class ConvolutionWeight {
public:
    // `packed` is [out, row_bytes], of columns (channel of the group, kernel row, kernel column).
    ConvolutionWeight(const ConvolutionShape& shape, const std::uint8_t* packed, std::int64_t row_bytes, int bits);

    ConvolutionShape shape;
    Buffer<std::int8_t> codes;  // [block][position][pair of channels][kRows][2]; empty where it is depthwise
    Buffer<std::int16_t> taps;  // [out][kernel row][pair of kernel columns][2]; empty where it is not
    Buffer<std::int16_t> side_taps;  // the same [pair of positions][tap_slots][2], for channels that are last

    std::int64_t block_codes() const { return shape.positions() * shape.pairs() * 2 * kRows; }
};

// One call; all arrays are dense. T is float, bfloat16 or float16.
template <typename T>
struct ConvolutionCall {
    const T* x;      // [images, in, height, width], or [images, height, width, in]
    T* y;            // likewise
    const T* scale;  // [out]
    const T* bias;   // [out], or null
    std::int64_t images, height, width;
    bool channels_last;
    Rounding rounding;
    float input_scale;  // of kInt8Tensor
    float input_zero;
};

// Neighbouring pairs of codes: of the panel, and of every pixel from `offset` on.
struct Run {
    std::int64_t offset, pairs;
    bool closes;  // whether it is the last of its span
};

// Sums of 16 output channels for `count` pixels, which begin `shift` behind `pixels`: float [count][kRows]. The panel is
// [pair][kRows][2].
using ConvolutionTile = void(const std::int8_t* panel, const std::vector<Run>& runs, const std::int16_t* const* pixels,
                             std::int64_t shift, std::int64_t count, float* sums);
ConvolutionTile convolution_tile_scalar, convolution_tile_avx2, convolution_tile_avx512;

// Sums of one channel by its taps for all pixels of a plane [rows, columns] of codes, which may be read a vector beyond
// its end: int32 [rows of the output, columns of the output].
struct Plane {
    const std::int16_t* codes;
    std::int64_t columns;            // of a row of codes
    std::int64_t out_rows, out_columns;
};
using PlaneKernel = void(const ConvolutionShape& shape, const std::int16_t* taps, const Plane& plane, std::int32_t* sums);
PlaneKernel plane_scalar, plane_avx2;

// The whole call on `threads` threads.
template <typename T>
void convolve(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa);

template <typename T>
void convolve_depthwise(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa);

}  // namespace goldstick
