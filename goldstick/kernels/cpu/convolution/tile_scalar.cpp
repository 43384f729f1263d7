// The portable kernels of convolutions: what the vector kernels equal bit for bit.
#include "convolution/convolution.hpp"

#include <algorithm>

namespace goldstick {

void convolution_tile_scalar(const std::int8_t* panel, const std::vector<Run>& runs, const std::int16_t* const* pixels,
                             std::int64_t shift, std::int64_t count, float* sums) {
    std::fill_n(sums, count * kRows, 0.0f);
    for (std::int64_t pixel = 0; pixel < count; ++pixel) {
        const std::int8_t* codes = panel;
        std::int32_t products[kRows] = {};
        for (const Run& run : runs) {
            const std::int16_t* const q = pixels[pixel] + shift + run.offset;
            for (std::int64_t pair = 0; pair < run.pairs; ++pair, codes += 2 * kRows) {
                for (std::int64_t row = 0; row < kRows; ++row) {
                    products[row] += codes[2 * row] * q[2 * pair] + codes[2 * row + 1] * q[2 * pair + 1];
                }
            }
            if (run.closes) {
                for (std::int64_t row = 0; row < kRows; ++row) {
                    sums[pixel * kRows + row] += static_cast<float>(products[row]);
                    products[row] = 0;
                }
            }
        }
    }
}

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
