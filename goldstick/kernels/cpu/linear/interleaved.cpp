#include "linear/interleaved.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

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
    return {call.columns, call.group_size, call.bits, call.coding, call.row_bytes, call.rounding, false, Isa::kScalar,
            true, call.superblocks};
}

std::int64_t blocks_of(std::int64_t rows) { return (rows + kRows - 1) / kRows; }

// The integer of a column of a row; 0 after the end of the chunk.
unsigned integer_at(const Columns& columns, const Chunk& chunk, const std::uint8_t* row, std::int64_t column) {
    if (column >= chunk.end) {
        return 0;
    }
    const unsigned code = code_at(row, column, columns.bits);
    return in_nibbles(columns.shape) ? code : columns.coding[code];
}

// Lane `d` of a block, which begins with column `first`: neighbouring codes, as far as the chunk goes.
std::uint32_t lane_at(const Columns& columns, const Chunk& chunk, const std::uint8_t* row, std::int64_t first, int d) {
    const std::int64_t codes = columns.lane_codes(), begin = first + d * codes;
    const int width = static_cast<int>(32 / codes);
    std::uint32_t word = 0;
    if (columns.bits == width && begin * width % 8 == 0 && begin + codes <= chunk.end) {
        std::memcpy(&word, row + begin * width / 8, sizeof word);
        return word;
    }
    for (std::int64_t i = 0; i < codes; ++i) {
        word |= static_cast<std::uint32_t>(integer_at(columns, chunk, row, begin + i)) << i * width;
    }
    return word;
}

// The words of a block of one row, `kRows` apart.
void lay_block(const Columns& columns, const Chunk& chunk, const std::uint8_t* row, std::int64_t first,
               std::uint32_t* out) {
    const Shape shape = columns.shape;
    for (int word = 0; word < words_of(shape); ++word) {
        out[word * kRows] = is_split(shape) ? 0 : lane_at(columns, chunk, row, first, word);
    }
    for (int d = 0; is_split(shape) && d < lanes_of(shape); ++d) {
        const std::uint32_t lane = lane_at(columns, chunk, row, first, d), every = 0x01010101u;
        const Part low = low_bits(shape, d), high = high_bits(shape, d);
        out[low.word * kRows] |= (lane & every * static_cast<unsigned>(low.mask)) << low.shift;
        if (shape != Shape::kPairs) {
            out[high.word * kRows] |= (lane >> 4 & every * static_cast<unsigned>(high.mask)) << high.shift;
        }
    }
}

bool are_whole(const float* numbers, std::int64_t count) {
    return std::all_of(numbers, numbers + count, [](float number) {
        return number >= -128.0f && number <= 127.0f && number == std::nearbyint(number);
    });
}

// Whether scales of superblocks, and minimums, are integers of 8 bits.
template <typename T>
bool scales_are_whole(const LinearCall<T>& call) {
    if (!call.units) {
        return false;
    }
    bool whole = true;
#pragma omp parallel for schedule(static) reduction(&& : whole) if (call.rows * call.groups >= kThreadedFrom)
    for (std::int64_t row = 0; row < call.rows; ++row) {
        std::vector<float> numbers(static_cast<std::size_t>(call.groups));
        const T* const scale = call.scale + row * call.groups;
        std::transform(scale, scale + call.groups, numbers.begin(), [](const T& number) { return to_float(number); });
        whole = whole && are_whole(numbers.data(), call.groups) &&
                (!call.zero || are_whole(call.zero + row * call.groups, call.groups));
    }
    return whole;
}

// Scales of 16 rows and of their superblocks; or the same of minimums, which are in plane 1.
template <typename T, typename From>
void lay_whole(const LinearCall<T>& call, const From* from, std::int64_t plane, std::int64_t first, std::int8_t* whole,
               float* unit) {
    const std::int64_t planes = call.zero ? 2 : 1;
    for (std::int64_t r = 0; r < kRows; ++r) {
        const std::int64_t row = std::min(first + r, call.rows - 1);
        for (std::int64_t g = 0; g < call.groups; ++g) {
            whole[g * kRows + r] = static_cast<std::int8_t>(to_float(from[row * call.groups + g]));
        }
        for (std::int64_t s = 0; s < call.superblocks; ++s) {
            unit[s * kRows + r] = call.units[(row * planes + plane) * call.superblocks + s];
        }
    }
}

}  // namespace

template <typename T>
Interleaved::Interleaved(const LinearCall<T>& call)
    : row_words_(columns_of(call).words()),
      groups_(call.groups),
      words_(blocks_of(call.rows) * kRows * row_words_, true),
      superblocks_(call.superblocks),
      whole_(scales_are_whole(call)),
      has_zero_(call.zero != nullptr),
      in_superblocks_(whole_ && columns_of(call).even && !call.coding.is_table),
      scale_(blocks_of(call.rows) * kRows * (whole_ ? superblocks_ : groups_), true),
      zero_(has_zero_ ? scale_.count() : 0, true),
      whole_scale_(whole_ ? blocks_of(call.rows) * kRows * groups_ : 0, true),
      whole_zero_(has_zero_ ? whole_scale_.count() : 0, true) {
    const Columns columns = columns_of(call);
    const std::int64_t blocks = blocks_of(call.rows);
#pragma omp parallel for schedule(static) if (words_.count() >= kThreadedFrom)
    for (std::int64_t i = 0; i < blocks; ++i) {
        const std::int64_t first = i * kRows;
        if (whole_) {
            lay_whole(call, call.scale, 0, first, whole_scale_.data() + first * groups_, scale_.data() + first * superblocks_);
            if (has_zero_) {
                lay_whole(call, call.zero, 1, first, whole_zero_.data() + first * groups_, zero_.data() + first * superblocks_);
            }
        } else {
            gather_steps(call, first, scale_.data() + first * groups_, zero_.data() + first * groups_);
        }
        std::uint32_t* out = words_.data() + first * row_words_;
        for (const Chunk& chunk : columns.chunks) {
            for (std::int64_t at = 0; at < chunk.padded; at += columns.block_codes(), out += kRows * words_of(columns.shape)) {
                for (std::int64_t r = 0; r < kRows; ++r) {
                    const std::int64_t row = std::min(first + r, call.rows - 1);
                    lay_block(columns, chunk, call.packed + row * call.row_bytes, chunk.begin + at, out + r);
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
    block.minimums = superblocks_ > 0 && has_zero_;
    if (whole_) {
        block.whole_scale = whole_scale_.data() + first * groups_;
        block.unit = scale_.data() + first * superblocks_;
        block.whole_zero = has_zero_ ? whole_zero_.data() + first * groups_ : nullptr;
        block.zero_unit = has_zero_ ? zero_.data() + first * superblocks_ : nullptr;
    } else {
        block.scale = scale_.data() + first * groups_;
        block.zero = has_zero_ ? zero_.data() + first * groups_ : nullptr;
    }
    return block;
}

template <typename T>
bool Interleaved::pays(const LinearCall<T>& call) {
    const Columns columns = columns_of(call);
    const std::int64_t filling = columns.steps * columns.step_codes() - call.columns;
    return filling * kMostFilling <= call.columns;
}

template bool Interleaved::pays(const LinearCall<float>&);
template bool Interleaved::pays(const LinearCall<bfloat16>&);
template bool Interleaved::pays(const LinearCall<float16>&);

}  // namespace goldstick
