// The portable kernels of convolutions: what the vector kernels equal bit for bit.
#include "convolution/convolution.hpp"

#include <algorithm>

namespace goldstick {

template <typename Code>
static void tiles(const TileCall<Code>& call) {
    constexpr std::int64_t together = 4 / sizeof(Code);
    std::fill_n(call.sums, call.count * kRows, 0.0f);
    for (std::int64_t pixel = 0; pixel < call.count; ++pixel) {
        const std::int8_t* codes = call.panel;
        std::int32_t products[kRows];
        std::copy_n(call.begin, kRows, products);
        for (const Run& run : call.runs) {
            const Code* const q = call.pixels[pixel] + call.group + run.offset;
            for (std::int64_t i = 0; i < run.steps * together; i += together, codes += together * kRows) {
                for (std::int64_t row = 0; row < kRows; ++row) {
                    for (std::int64_t j = 0; j < together; ++j) products[row] += codes[row * together + j] * q[i + j];
                }
            }
            if (run.closes) {
                for (std::int64_t row = 0; row < kRows; ++row) {
                    call.sums[pixel * kRows + row] += static_cast<float>(products[row]);
                    products[row] = call.begin[row];
                }
            }
        }
    }
}

void convolution_tiles_scalar(const TileCall<std::int16_t>& call) { tiles(call); }
void byte_tiles_scalar(const TileCall<std::uint8_t>& call) { tiles(call); }

void plane_scalar(const ConvolutionShape& shape, const std::int16_t* taps, const Plane& plane, std::int32_t* sums) {
    const std::int64_t tap_row = shape.tap_pairs() * 2;
    for (std::int64_t row = 0; row < plane.out_rows; ++row, sums += plane.out_columns) {
        std::fill_n(sums, plane.out_columns, 0);
        for (std::int64_t i = 0; i < shape.kernel_rows; ++i) {
            const std::int16_t* const codes =
                plane.codes + (row * shape.stride_rows + i * shape.dilation_rows) * plane.columns;
            for (std::int64_t j = 0; j < shape.kernel_columns; ++j) {
                const std::int16_t* const q = codes + j * shape.dilation_columns;
                const std::int32_t tap = taps[i * tap_row + j];
                for (std::int64_t column = 0; column < plane.out_columns; ++column) {
                    sums[column] += tap * q[column * shape.stride_columns];
                }
            }
        }
    }
}

}  // namespace goldstick
