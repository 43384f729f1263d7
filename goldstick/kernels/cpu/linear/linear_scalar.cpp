// The portable block: each row's codes are spread out in the order of the activations and multiplied one by one.
#include <cstring>

#include "linear/linear.hpp"

namespace goldstick {

namespace {

void unpack_row(const Columns& columns, const Chunk& chunk, const std::uint8_t* row, std::int16_t* codes) {
    std::uint8_t bytes[kBlockBytes];
    for (std::int64_t start = 0; start < chunk.padded; start += columns.block_codes()) {
        copy_block(columns, chunk, row, start / columns.block_codes(), bytes);
        for (std::int64_t i = 0; i < columns.block_codes(); ++i) {
            const bool wide = !in_nibbles(columns.shape);  // and an integer already
            const int code = wide ? bytes[i] : columns.coding[bytes[i / 2] >> (i % 2 * 4) & 15];
            codes[start + columns.place(i)] = static_cast<std::int16_t>(code);
        }
    }
}

// What the products of a span come to; `group` is that of a row.
float closed(const RowBlock& block, std::int64_t group, std::int32_t product, std::int32_t shift, float scale) {
    if (!block.zero) {
        return static_cast<float>(product + shift) * (block.scale[group] * scale);
    }
    const float of_zeros = block.zero[group] * static_cast<float>(shift);
    if (block.minimums) {
        return (static_cast<float>(product) * block.scale[group] - of_zeros) * scale;
    }
    return (static_cast<float>(product) - of_zeros) * (block.scale[group] * scale);
}

}  // namespace

void block_scalar(const Columns& columns, const RowBlock* block, const Activations& activations, std::int64_t begin,
                  std::int64_t end, float* sums) {
    std::fill_n(sums, (end - begin) * kRows, 0.0f);
    std::vector<std::int32_t> products(static_cast<std::size_t>(end - begin) * kRows);
    std::int16_t codes[kChunk];
    std::int64_t index = 0;
    for (const Chunk& chunk : columns.chunks) {
        for (std::int64_t r = 0; r < kRows; ++r) {
            unpack_row(columns, chunk, block->rows[r], codes);
            for (std::int64_t token = begin; token < end; ++token) {
                const std::int64_t at = (token - begin) * kRows + r, part = index * activations.tokens + token;
                const std::int32_t* q = activations.codes + activations.of(chunk, token);
                const std::int64_t apart = activations.apart(token);
                std::int32_t product = chunk.opens ? 0 : products[static_cast<std::size_t>(at)];
                for (std::int64_t i = 0; i < chunk.steps; ++i) {
                    std::int16_t pair[2];
                    std::memcpy(pair, q + i * apart, sizeof pair);
                    product += codes[2 * i] * pair[0] + codes[2 * i + 1] * pair[1];
                }
                products[static_cast<std::size_t>(at)] = product;
                if (chunk.closes) {
                    const std::int64_t group = chunk.group * kRows + r;
                    const std::int32_t shift = activations.shift[part];
                    sums[at] += closed(*block, group, product, shift, activations.scale[part]);
                }
            }
        }
        ++index;
    }
}

}  // namespace goldstick
