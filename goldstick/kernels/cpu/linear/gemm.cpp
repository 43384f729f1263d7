// Spreads the codes of a chunk out and has all tiles of tokens multiplied by them, chunk after chunk.
#include "linear/gemm.hpp"

#include "linear/unpack_avx2.hpp"

#if defined(__x86_64__)

namespace goldstick {
namespace {

// Where the cache lines of the 16 rows of a chunk lie, spread out over its steps: one word of each row fills a line
// where they lie side by side.
void spread_lines(const Columns& columns, const Chunk& chunk, bool interleaved, std::int32_t* lines) {
    const std::int64_t of_row = (chunk.padded * columns.bits / 8 + 63) / 64;
    const std::int64_t count = interleaved ? columns.words(chunk) : of_row * kRows;
    for (std::int64_t step = 0; step < chunk.steps; ++step) {
        const std::int64_t line = step * count / chunk.steps;
        const std::int64_t in_rows = line / of_row * columns.row_bytes + line % of_row * 64;
        lines[step] = static_cast<std::int32_t>(interleaved ? line * 64 : in_rows);
    }
}

// Scales and zeros of a group as floats, where they are products of integers with those of their superblock.
class Expanded {
public:
    const float* scale(const RowBlock& block, const Chunk& chunk) {
        return block.whole_scale ? product(block.whole_scale, block.unit, chunk, scale_) : block.scale + chunk.group * kRows;
    }
    const float* zero(const RowBlock& block, const Chunk& chunk) {
        return block.whole_zero ? product(block.whole_zero, block.zero_unit, chunk, zero_)
               : block.zero     ? block.zero + chunk.group * kRows
                                : nullptr;
    }

private:
    static const float* product(const std::int8_t* whole, const float* unit, const Chunk& chunk, float* out) {
        for (std::int64_t r = 0; r < kRows; ++r) {
            out[r] = static_cast<float>(whole[chunk.group * kRows + r]) * unit[chunk.superblock * kRows + r];
        }
        return out;
    }
    float scale_[kRows], zero_[kRows];
};

template <int count>
void block_gemm(const Columns& columns, const RowBlock* blocks, const Activations& activations, std::int64_t begin,
                 std::int64_t end, float* sums, Multiply* of_tile, Multiply* of_rest) {
    const std::int64_t numbers = (end - begin) * kRows;  // of a block
    std::fill_n(sums, count * numbers, 0.0f);
    if (columns.chunks.empty()) {
        return;
    }
    Panel panels[count];
    std::int32_t products[count * kTokens * kRows];
    const bool interleaved = blocks->words != nullptr;
    const bool as_they_are = interleaved && columns.in_bytes && columns.shape == Shape::kBytes;
    Unpack* const spread = (columns.in_bytes ? unpack_for<true> : unpack_for<false>)(columns, interleaved);
    const std::int64_t tile = activations.tile, rest = (end - begin) % tile, full = end - rest;
    std::int64_t part = 0, tiles = 0;  // of the chunks before this one
    std::int32_t lines[kChunk];
    spread_lines(columns, columns.chunks.front(), interleaved, lines);
    for (const Chunk& chunk : columns.chunks) {
        const bool last = &chunk == &columns.chunks.back();
        Rows rows[count];
        Expanded expanded[count];
        for (int b = 0; b < count; ++b) {
            const RowBlock& block = blocks[b];
            const std::uint32_t* const words = interleaved ? columns.words_from(chunk, block) : nullptr;
            if (!as_they_are) {
                spread(columns, chunk, block, panels[b]);
            }
            rows[b] = {as_they_are ? reinterpret_cast<const std::int32_t*>(words) : panels[b].codes,
                       interleaved ? reinterpret_cast<const std::uint8_t*>(words + columns.words(chunk) * kRows)
                                   : block.rows[0] + (last ? kRows * columns.row_bytes : chunk.end * columns.bits / 8),
                       expanded[b].scale(block, chunk),
                       expanded[b].zero(block, chunk),
                       block.minimums,
                       products + b * numbers,
                       sums + b * numbers};
        }
        const auto over = [&](std::int64_t token, std::int64_t tiles_of) {
            const std::int64_t at =
                activations.in_matrices ? activations.of_tile(chunk, token) : activations.of(chunk, token);
            Strip strip{{},
                        lines,
                        tiles_of,
                        std::min(tiles_of * tile, end - token),
                        activations.codes + at,
                        activations.low ? activations.low + at : nullptr,
                        activations.scale + part + token,
                        activations.shift + part + token,
                        columns.matrix_steps,
                        activations.overflow_of(chunk, token),
                        activations.overflows ? activations.overflows + tiles + token / tile : nullptr};
            for (int b = 0; b < count; ++b) {
                strip.rows[b] = rows[b];
                strip.rows[b].products += (token - begin) * kRows;
                strip.rows[b].sums += (token - begin) * kRows;
            }
            return strip;
        };
        of_tile(over(begin, (full - begin) / tile), chunk);
        if (rest) {
            of_rest(over(full, 1), chunk);
        }
        part += activations.tokens;
        tiles += activations.tiles();
    }
}

}  // namespace

void block_gemm_avx2(const Columns& columns, const RowBlock* block, const Activations& activations,
                      std::int64_t begin, std::int64_t end, float* sums) {
    Multiply* const* const run = gemm_avx2(columns);
    const std::int64_t tile = activations.tile;
    block_gemm<1>(columns, block, activations, begin, end, sums, run[tile], run[(end - begin) % tile]);
}

void block_gemm_avx512(const Columns& columns, const RowBlock* block, const Activations& activations,
                        std::int64_t begin, std::int64_t end, float* sums) {
    Multiply* const* const run = gemm_avx512(columns);
    const std::int64_t tile = activations.tile;
    block_gemm<1>(columns, block, activations, begin, end, sums, run[tile], run[(end - begin) % tile]);
}

#if defined(GOLDSTICK_HAS_AMX)
void block_gemm_amx(const Columns& columns, const RowBlock* blocks, const Activations& activations, std::int64_t begin,
                     std::int64_t end, float* sums) {
    const Tiles tiles(columns);
    Multiply* const run = gemm_amx(activations.low != nullptr);
    block_gemm<kBlocks>(columns, blocks, activations, begin, end, sums, run, nullptr);
}
#endif

}  // namespace goldstick

#endif
