// The codes of a convolution, laid out once: 16 output channels side by side, two or four neighbouring
// channels to a step.
#include "convolution/convolution.hpp"

#include <algorithm>

namespace goldstick {

bool takes_bytes(Rounding rounding, std::int64_t products) {
    return rounding != Rounding::kInt16 && products <= kSpan8 && chosen_isa() >= Isa::kAvx512;
}

ConvolutionWeight::ConvolutionWeight(const ConvolutionShape& given, const std::uint8_t* packed, std::int64_t row_bytes,
                                     int bits, bool in_bytes)
    : shape(given),
      together(in_bytes ? 4 : 2),
      codes(given.depthwise() ? 0 : given.blocks() * block_codes()),
      sums(given.depthwise() ? 0 : given.blocks() * kRows),
      taps(given.depthwise() ? given.out * given.kernel_rows * given.tap_pairs() * 2 : 0),
      side_taps(given.depthwise() && given.group_out() == 1 ? (given.positions() + 1) / 2 * given.tap_slots() * 2 : 0) {
    std::fill_n(codes.data(), codes.count(), std::int8_t{0});
    std::fill_n(sums.data(), sums.count(), 0);
    std::fill_n(taps.data(), taps.count(), std::int16_t{0});
    std::fill_n(side_taps.data(), side_taps.count(), std::int16_t{0});
    const std::int64_t positions = shape.positions(), channels = shape.group_in();
    const int middle = 1 << (bits - 1);
    for (std::int64_t out = 0; out < shape.out; ++out) {
        const std::uint8_t* const row = packed + out * row_bytes;
        const std::int64_t group = out / shape.group_out(), within = out % shape.group_out();
        const std::int64_t block = group * shape.blocks_of_group() + within / kRows;
        for (std::int64_t channel = 0; channel < channels; ++channel) {
            for (std::int64_t position = 0; position < positions; ++position) {
                const std::int64_t column = channel * positions + position;
                const int code = static_cast<int>(bits == 8 ? row[column] : code_at(row, column, bits)) - middle;
                if (shape.depthwise()) {
                    const std::int64_t kernel_row = position / shape.kernel_columns, tap = position % shape.kernel_columns;
                    taps.data()[(out * shape.kernel_rows + kernel_row) * shape.tap_pairs() * 2 + tap] =
                        static_cast<std::int16_t>(code);
                    if (side_taps.count()) {
                        side_taps.data()[(position / 2 * shape.tap_slots() + out) * 2 + position % 2] =
                            static_cast<std::int16_t>(code);
                    }
                } else {
                    const std::int64_t slot = position % shape.kernel_columns * shape.group_slots(together) + channel;
                    const std::int64_t kernel_row = block * shape.kernel_rows + position / shape.kernel_columns;
                    const std::int64_t step = kernel_row * shape.row_steps(together) + slot / together;
                    codes.data()[(step * kRows + within % kRows) * together + slot % together] =
                        static_cast<std::int8_t>(code);
                    sums.data()[block * kRows + within % kRows] += code;
                }
            }
        }
    }
}

}  // namespace goldstick
