// The portable rows of depthwise convolutions: what the vector kernels equal bit for bit.
#include "convolution/depthwise_rows.hpp"

#include <algorithm>

namespace goldstick {
namespace {

constexpr std::int64_t kLanes = 4, kBlock = 2 * kLanes;  // in their order: slot_of() moves nothing

bool lay(const float* x, std::int64_t pixels, std::int64_t channels, const ImageScale& how, std::int16_t* to) {
    const std::int64_t slots = (channels + kBlock - 1) / kBlock * kBlock;
    bool numbers = true;
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels, to += slots) {
        numbers &= codes_scalar(x, channels, how, to);
        std::fill(to + channels, to + slots, std::int16_t{0});
    }
    return numbers;
}

void lay_bytes(const std::uint8_t* x, std::int64_t pixels, std::int64_t channels, std::int16_t shift, std::int16_t* to) {
    const std::int64_t slots = (channels + kBlock - 1) / kBlock * kBlock;
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels, to += slots) {
        std::transform(x, x + channels, to, [&](std::uint8_t byte) { return static_cast<std::int16_t>(byte - shift); });
        std::fill(to + channels, to + slots, std::int16_t{0});
    }
}

void multiply(const ConvolutionShape& shape, const OutputRow& row) {
    float* y = row.y;
    for (std::int64_t column = 0; column < row.columns; ++column, y += row.channels) {
        for (std::int64_t c = 0; c < row.channels; ++c) {
            std::int32_t sum = 0;
            for (std::int64_t position = 0; position < shape.positions(); ++position) {
                const std::int64_t i = position / shape.kernel_columns, j = position % shape.kernel_columns;
                const std::int64_t pixel = column * shape.stride_columns + j * shape.dilation_columns;
                const std::int32_t tap = row.taps[2 * (position / 2 * row.tap_slots + c) + position % 2];
                sum += tap * row.rows[i][pixel * row.slots + c];
            }
            y[c] = finished(static_cast<float>(sum), row.by[c], row.shift[c], row.least, row.most);
        }
    }
}

}  // namespace

const RowKernels kRowsScalar{kLanes, lay, lay_bytes, multiply};

}  // namespace goldstick
