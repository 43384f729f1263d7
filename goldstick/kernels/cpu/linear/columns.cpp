// How the columns of a row are cut into spans, chunks and blocks.
#include <algorithm>

#include "linear/linear.hpp"

namespace goldstick {

namespace {

constexpr std::int64_t kSpan16 = 128;    // 128 products of 8 and 16 bits, and half of what 32 bits hold; and of scales by span
constexpr std::int64_t kSpan8 = 32768;   // as many products of 8 and 9 bits
constexpr std::int64_t kHalfMatrix = 32;  // columns of the half of a matrix of AMX

Shape shape_of(std::int64_t group_size, int bits, bool table, bool nibbles, bool interleaved) {
    if (interleaved && !table && bits <= 2) return Shape::kPairs;
    if (nibbles) {
        return group_size <= 16 ? Shape::kQuarterNibbles : group_size <= 32 ? Shape::kHalfNibbles : Shape::kNibbles;
    }
    if (interleaved && !table && bits <= 6) return bits == 5 && group_size > 16 ? Shape::kFives : Shape::kSixes;
    return group_size <= 16 ? Shape::kHalfBytes : Shape::kBytes;
}

}  // namespace

Columns::Columns(std::int64_t columns, std::int64_t group_size, int bits, const Coding& coding, std::int64_t row_bytes,
                 Rounding rounding, bool in_bytes, Isa isa, bool interleaved, std::int64_t superblocks)
    : bits(bits), coding(coding), row_bytes(row_bytes), in_bytes(in_bytes), deposit(isa != Isa::kScalar && can_deposit()), steps(0),
      matrix_steps(16) {
    const bool whole_bytes = group_size % 2 == 0 || group_size >= columns;  // in nibbles: groups begin with a byte
    const bool nibbles = interleaved ? bits <= 4 : bits == 4 && whole_bytes;
    shape = shape_of(group_size, bits, coding.is_table, nibbles, interleaved);
    direct = !interleaved && (nibbles || bits == 8);
    // AMX takes no fewer than half a matrix.
    const std::int64_t whole_blocks = std::max<std::int64_t>(block_codes(), group_size < kHalfMatrix ? 1 : kHalfMatrix);
    const std::int64_t of_superblock = superblocks ? std::max<std::int64_t>(columns / superblocks, 1) : columns;
    const std::int64_t longest = by_span(rounding) ? kSpan16 : kSpan8;
    const std::int64_t chunk_size = by_span(rounding) ? kSpan16 : kChunk;
    chunks.reserve(static_cast<std::size_t>(columns / std::min(chunk_size, group_size) + 1));
    for (std::int64_t start = 0; start < columns; start += group_size) {
        const std::int64_t stop = std::min(start + group_size, columns);
        for (std::int64_t begin = start; begin < stop; begin += chunk_size) {
            const std::int64_t end = std::min(begin + chunk_size, stop);
            const std::int64_t width = (end - begin + whole_blocks - 1) / whole_blocks * whole_blocks;
            const std::int64_t there = (row_bytes - begin * bits / 8) / block_bytes();
            const std::int64_t whole = direct ? std::min(there, width / block_codes()) : 0;
            chunks.push_back({begin, end, start / group_size, start / of_superblock, steps, width, width / step_codes(), whole,
                              (begin - start) % longest == 0, end == stop || (end - start) % longest == 0});
            steps += width / step_codes();
            matrix_steps = width / step_codes() % 16 == 0 ? matrix_steps : 8;
        }
    }
    const auto groups = static_cast<std::int64_t>(chunks.size());
    even = superblocks > 0 && groups * group_size == columns && groups % superblocks == 0 && group_size == block_codes();
}

}  // namespace goldstick
