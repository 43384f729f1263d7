// Two neighbouring products of 8-bit codes and activations are added in 16 bits, which hold them if the two activations
// come to 128 and no more: 255 · 128 < 2^15. Where they come to more, all activations of the step are halved, and the
// other halves are put by, to be multiplied as a step of their own.
#include <cstdlib>
#include <cstring>

#include "linear/linear.hpp"

namespace goldstick {

namespace {

constexpr int kMost = 128;

bool exceeds(const std::int8_t* codes, std::int64_t count) {
    int largest = 0;
    for (std::int64_t i = 0; i < count; i += 2) {
        largest = std::max(largest, std::abs(codes[i] + codes[i + 1]));
    }
    return largest > kMost;
}

}  // namespace

std::int64_t split_overflow(const Columns& columns, const Activations& activations, std::int64_t token) {
    const std::int64_t tokens = activations.apart(token), width = tokens * 4;
    std::int64_t total = 0, at = token / activations.tile;
    for (const Chunk& chunk : columns.chunks) {
        auto* codes = reinterpret_cast<std::int8_t*>(activations.codes + activations.of(chunk, token));
        Overflow* overflow = activations.overflow_of(chunk, token);
        std::int32_t count = 0;
        for (std::int64_t step = 0; step < chunk.steps; ++step, codes += width) {
            if (width == 4 * kTile ? !exceeds(codes, 4 * kTile) : !exceeds(codes, width)) {
                continue;
            }
            std::int8_t rest[4 * kTile];
            for (std::int64_t i = 0; i < width; ++i) {
                const int half = codes[i] >> 1;
                rest[i] = static_cast<std::int8_t>(codes[i] - half);
                codes[i] = static_cast<std::int8_t>(half);
            }
            overflow[count].step = static_cast<std::int32_t>(step);
            std::memcpy(overflow[count++].codes, rest, static_cast<std::size_t>(width));
        }
        activations.overflows[at] = count;
        total += count;
        at += activations.tiles();
    }
    return total;
}

}  // namespace goldstick
