#include "linear/interleaved.hpp"

#include <cstring>

#include "base/floats.hpp"
#include "linear/gather.hpp"

namespace goldstick {

namespace {

// A layout of which more than a quarter is filling is not worth its memory.
constexpr std::int64_t kMostFilling = 4;

// Words below this many take one thread: starting a team costs more than it saves.
constexpr std::int64_t kThreadedFrom = 1 << 16;

template <typename T>
Columns columns_of(const LinearCall<T>& call) {
    return {call.columns, call.group_size, call.bits, call.row_bytes, call.rounding, false, Isa::kScalar, true};
}

std::int64_t blocks_of(std::int64_t rows) { return (rows + kRows - 1) / kRows; }

// Neighbouring codes of a row from `first` on, as far as the chunk goes.
std::uint32_t word_at(const Columns& columns, const Chunk& chunk, const std::uint8_t* row, std::int64_t first) {
    const std::int64_t codes = columns.lane_codes(), last = std::min(first + codes, chunk.end);
    const int width = static_cast<int>(32 / codes);
    std::uint32_t word = 0;
    if (columns.bits == width && first * width % 8 == 0 && first + codes <= chunk.end) {
        std::memcpy(&word, row + first * width / 8, sizeof word);
        return word;
    }
    for (std::int64_t column = first; column < last; ++column) {
        word |= code_at(row, column, columns.bits) << (column - first) * width;
    }
    return word;
}

}  // namespace

template <typename T>
Interleaved::Interleaved(const LinearCall<T>& call)
    : row_words_(columns_of(call).words()),
      groups_(call.groups),
      words_(blocks_of(call.rows) * kRows * row_words_, true),
      scale_(blocks_of(call.rows) * kRows * groups_, true),
      zero_(call.zero ? blocks_of(call.rows) * kRows * groups_ : 0, true),
      has_zero_(call.zero != nullptr) {
    const Columns columns = columns_of(call);
    const std::int64_t blocks = blocks_of(call.rows);
#pragma omp parallel for schedule(static) if (words_.count() >= kThreadedFrom)
    for (std::int64_t i = 0; i < blocks; ++i) {
        const std::int64_t groups = i * kRows * groups_;
        const RowBlock block = gather_block(call, i * kRows, scale_.data() + groups, zero_.data() + groups);
        std::uint32_t* out = words_.data() + i * kRows * row_words_;
        for (const Chunk& chunk : columns.chunks) {
            for (std::int64_t w = 0; w < columns.words(chunk); ++w, out += kRows) {
                for (std::int64_t r = 0; r < kRows; ++r) {
                    out[r] = word_at(columns, chunk, block.rows[r], chunk.begin + w * columns.lane_codes());
                }
            }
        }
    }
}

template Interleaved::Interleaved(const LinearCall<float>&);
template Interleaved::Interleaved(const LinearCall<bfloat16>&);
template Interleaved::Interleaved(const LinearCall<float16>&);

RowBlock Interleaved::block(std::int64_t first) const {
    RowBlock block{};
    block.words = words_.data() + first * row_words_;
    block.scale = scale_.data() + first * groups_;
    block.zero = has_zero_ ? zero_.data() + first * groups_ : nullptr;
    return block;
}

template <typename T>
bool Interleaved::pays(const LinearCall<T>& call) {
    const Columns columns = columns_of(call);
    const std::int64_t filling = columns.words() * columns.lane_codes() - call.columns;
    return filling * kMostFilling <= call.columns;
}

template bool Interleaved::pays(const LinearCall<float>&);
template bool Interleaved::pays(const LinearCall<bfloat16>&);
template bool Interleaved::pays(const LinearCall<float16>&);

}  // namespace goldstick
