// Panels are packed once for a few hundred tokens, so that every tile reads its two panels from near memory; tiles are
// shared out among the threads.
#include "calibration/products.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/buffer.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kTokens = 2048;  // at a time: a packed panel of them is 192 KiB

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

constexpr std::int64_t kAlways = ((std::int64_t{1} << 31) - 1) / (2ll * kLargest * kLargest);  // pairs
constexpr std::int64_t kSegment = 32, kMost = 128;  // pairs; so many of two panels are near memory

// How many pairs of a packed panel may be summed in 32 bits: kMost, or half of it and so on down to kSegment, from one
// multiple of it to the next; or kAlways.
std::int64_t pairs_together(const std::int16_t* packed, std::int64_t pairs) {
    std::int64_t largest[3] = {};  // sums of squares of one channel over kSegment, 2 · kSegment, 4 · kSegment pairs
    std::int64_t squares[3][kPanel] = {};
    for (std::int64_t first = 0; first < pairs; first += kSegment) {
        const std::int64_t stop = std::min(pairs, first + kSegment);
        std::int64_t own[kPanel] = {};
        for (std::int64_t pair = first; pair < stop; ++pair) {
            const std::int16_t* at = packed + pair * 2 * kPanel;
            for (int channel = 0; channel < kPanel; ++channel) {
                const std::int32_t even = at[2 * channel], odd = at[2 * channel + 1];
                own[channel] += even * even + odd * odd;
            }
        }
        for (int size = 0; size < 3; ++size) {
            const bool begins = first % (kSegment << size) == 0;
            for (int channel = 0; channel < kPanel; ++channel) {
                squares[size][channel] = own[channel] + (begins ? 0 : squares[size][channel]);
                largest[size] = std::max(largest[size], squares[size][channel]);
            }
        }
    }
    for (int size = 2; size >= 0; --size) {
        if (largest[size] < (std::int64_t{1} << 31)) return kSegment << size;
    }
    return kAlways;
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

void add_tile_scalar(const std::int16_t* left, const std::int16_t* right, std::int64_t pairs, std::int64_t,
                     Tile& tile) {
    for (std::int64_t pair = 0; pair < pairs; ++pair, left += 2 * kPanel, right += 2 * kPanel) {
        for (int i = 0; i < kPanel; ++i) {
            const std::int32_t even = left[2 * i], odd = left[2 * i + 1];
            for (int j = 0; j < kPanel; ++j) tile[i][j] += even * right[2 * j] + odd * right[2 * j + 1];
        }
    }
}

void add_products(const Products& products, int threads, Isa isa) {
    static_assert(4 * kSegment == kMost && kAlways == 15);
    const AddTile add_tile = isa >= Isa::kAvx512 ? add_tile_avx512
                             : isa == Isa::kAvx2 ? add_tile_avx2
                                                 : add_tile_scalar;
    const std::int64_t down = panels_of(products.rows), across = panels_of(products.columns);
    const std::int64_t step = std::min(kTokens, products.tokens + products.tokens % 2);
    const std::int64_t size = step * kPanel;
    const Buffer<std::int16_t> packed_left(down * size), packed_right(products.upper ? 0 : across * size);
    std::vector<std::int64_t> together_left(static_cast<std::size_t>(down));
    std::vector<std::int64_t> together_right(static_cast<std::size_t>(products.upper ? 0 : across));
    const std::int64_t* left_together = together_left.data();
    const std::int64_t* right_together = products.upper ? left_together : together_right.data();
    const std::int16_t* lefts = packed_left.data();
    const std::int16_t* rights = products.upper ? lefts : packed_right.data();
    for (std::int64_t first = 0; first < products.tokens; first += kTokens) {
        const std::int64_t count = std::min(kTokens, products.tokens - first);
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(static)
            for (std::int64_t panel = 0; panel < down; ++panel) {
                std::int16_t* packed = packed_left.data() + panel * size;
                pack_panel(products.left, products.rows, panel, first, count, packed);
                together_left[static_cast<std::size_t>(panel)] = pairs_together(packed, (count + 1) / 2);
            }
            if (!products.upper) {
#pragma omp for schedule(static)
                for (std::int64_t panel = 0; panel < across; ++panel) {
                    std::int16_t* packed = packed_right.data() + panel * size;
                    pack_panel(products.right, products.columns, panel, first, count, packed);
                    together_right[static_cast<std::size_t>(panel)] = pairs_together(packed, (count + 1) / 2);
                }
            }
#pragma omp for schedule(dynamic, 1)
            for (std::int64_t i = 0; i < down; ++i) {
                for (std::int64_t j = products.upper ? i : 0; j < across; ++j) {
                    Tile tile = {};
                    add_tile(lefts + i * size, rights + j * size, (count + 1) / 2,
                             std::min(left_together[i], right_together[j]), tile);
                    add_to_sums(tile, products, i * kPanel, j * kPanel);
                }
            }
        }
    }
}

}  // namespace goldstick
