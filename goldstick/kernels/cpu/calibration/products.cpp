// Panels are packed once for a few hundred tokens, so that every tile reads its two panels from near memory; tiles are
// shared out among the threads.
#include "calibration/products.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace goldstick {
namespace {

constexpr std::int64_t kTokens = 2048;  // at a time: a packed panel of them is 96 KiB

std::int64_t panels_of(std::int64_t channels) { return (channels + kPanel - 1) / kPanel; }

// One panel of `values` [tokens, channels], its tokens from `first` on.
void pack_panel(const std::int16_t* values, std::int64_t channels, std::int64_t panel, std::int64_t first,
                std::int64_t count, std::int16_t* packed) {
    const std::int64_t begin = panel * kPanel;
    const std::int64_t width = std::min<std::int64_t>(kPanel, channels - begin);
    for (std::int64_t token = 0; token < count; token += 2) {
        const std::int16_t* even = values + (first + token) * channels + begin;
        const std::int16_t* odd = token + 1 < count ? even + channels : nullptr;
        std::int16_t* out = packed + token * kPanel;
        for (std::int64_t channel = 0; channel < width; ++channel) {
            out[2 * channel] = even[channel];
            out[2 * channel + 1] = odd ? odd[channel] : std::int16_t{0};
        }
        std::memset(out + 2 * width, 0, static_cast<std::size_t>(2 * (kPanel - width)) * sizeof *out);
    }
}

void add_to_sums(const Tile& tile, const Products& products, std::int64_t row, std::int64_t column) {
    const std::int64_t height = std::min<std::int64_t>(kPanel, products.rows - row);
    const std::int64_t width = std::min<std::int64_t>(kPanel, products.columns - column);
    for (std::int64_t i = 0; i < height; ++i) {
        std::int64_t* sums = products.sums + (row + i) * products.columns + column;
        for (std::int64_t j = 0; j < width; ++j) sums[j] += tile[i][j];
    }
}

}  // namespace

void add_tile_scalar(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, Tile& tile) {
    for (std::int64_t pair = 0; pair < pairs; ++pair, left += 2 * kPanel, right += 2 * kPanel) {
        for (int i = 0; i < kPanel; ++i) {
            const std::int32_t even = left[2 * i], odd = left[2 * i + 1];
            for (int j = 0; j < kPanel; ++j) tile[i][j] += even * right[2 * j] + odd * right[2 * j + 1];
        }
    }
}

void add_products(const Products& products, int threads, bool use_avx2) {
    const AddTile add_tile = use_avx2 ? add_tile_avx2 : add_tile_scalar;
    const std::int64_t down = panels_of(products.rows), across = panels_of(products.columns);
    const std::int64_t step = std::min(kTokens, products.tokens + products.tokens % 2);
    const std::int64_t size = step * kPanel;
    std::vector<std::int16_t> packed_left(static_cast<std::size_t>(down * size));
    std::vector<std::int16_t> packed_right(static_cast<std::size_t>(products.upper ? 0 : across * size));
    const std::int16_t* lefts = packed_left.data();
    const std::int16_t* rights = products.upper ? lefts : packed_right.data();
    for (std::int64_t first = 0; first < products.tokens; first += kTokens) {
        const std::int64_t count = std::min(kTokens, products.tokens - first);
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(static)
            for (std::int64_t panel = 0; panel < down; ++panel) {
                pack_panel(products.left, products.rows, panel, first, count, packed_left.data() + panel * size);
            }
            if (!products.upper) {
#pragma omp for schedule(static)
                for (std::int64_t panel = 0; panel < across; ++panel) {
                    pack_panel(products.right, products.columns, panel, first, count,
                               packed_right.data() + panel * size);
                }
            }
#pragma omp for schedule(dynamic, 1)
            for (std::int64_t i = 0; i < down; ++i) {
                for (std::int64_t j = products.upper ? i : 0; j < across; ++j) {
                    Tile tile = {};
                    add_tile(lefts + i * size, rights + j * size, (count + 1) / 2, tile);
                    add_to_sums(tile, products, i * kPanel, j * kPanel);
                }
            }
        }
    }
}

}  // namespace goldstick
