// y = f(x) · wᵀ + bias on packed codes, with integer sums.
//
// The activations of a token become integers q with a scale; the weight stays the packed codes u. The columns are cut
// into spans, each within one group of the weight. For one output,
//
//     y = Σ over spans  (Σ u·q − zero · Σ q) · (weight scale · activation scale)
//
// where u may be looked up in a table, and y is then multiplied by the table's unit and divided by the scale of scales.
// Of superblocks the weight scale is the product of two, exact in float32, and zeros are minimums, likewise:
//
//     y = Σ over spans  (Σ u·q · weight scale − minimum · Σ q) · activation scale
//
// Both inner sums are exact in 32 bits, so they may be taken in any order; the spans are added in order, in float32,
// with one rounding for each operation written here. Every path (portable or vector, one token or many, any number of
// threads) therefore gives the same bits. These files must be compiled without contraction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "base/isa.hpp"
#include "linear/coding.hpp"
#include "linear/shape.hpp"

namespace goldstick {

constexpr std::int64_t kRows = 16;         // rows of the weight that are worked on together
constexpr std::int64_t kBlocks = 2;        // most blocks of them that are multiplied together
constexpr std::int64_t kTokens = 512;      // most tokens that go through a block of rows together
constexpr std::int64_t kChunk = 512;       // most columns of a chunk
constexpr std::int64_t kBlockBytes = 32;   // most bytes of one row that are unpacked at once
constexpr std::int64_t kTile = 4;          // most tokens of a tile: their activations lie side by side
constexpr std::int64_t kTile512 = 16;      // the same with AVX-512; of AMX, the rows of a matrix
constexpr std::int64_t kPairedTokens = 2;  // most tokens for which two blocks of superblocks go together with AVX-512
constexpr std::int64_t kHalvedTokens = 4;  // most tokens whose 16-bit activations AVX-512 multiplies as two bytes

// How the activations become integers.
enum class Rounding {
    kInt16,       // 16 bits, one scale for each span of a token
    kInt8Group,   // 8 bits, likewise
    kInt8Token,   // 8 bits, one scale for each token
    kInt4Token,   // the same in 4 bits, whose codes are held and multiplied as those of 8
    kInt8Tensor,  // 8 bits, a given scale and zero
};

inline Rounding rounding_of(const std::string& activation) {
    if (activation.empty()) return Rounding::kInt16;
    if (activation == "int8-group") return Rounding::kInt8Group;
    if (activation == "int8-token") return Rounding::kInt8Token;
    if (activation == "int4-token") return Rounding::kInt4Token;
    if (activation == "int8-tensor") return Rounding::kInt8Tensor;
    throw std::invalid_argument("activation is '" + activation +
                                "', expected '', 'int8-group', 'int8-token', 'int4-token' or 'int8-tensor'");
}

// Whether spans of a token have scales of their own.
inline bool by_span(Rounding rounding) { return rounding == Rounding::kInt16 || rounding == Rounding::kInt8Group; }

class Interleaved;

// One call; all arrays are dense and row-major. T is float, bfloat16 or float16.
template <typename T>
struct LinearCall {
    const T* x;                  // [tokens, columns]
    const std::uint8_t* packed;  // [rows, row_bytes], element k in bits `bits·k …` of a row
    const T* scale;              // [rows, groups]
    const float* zero;           // [rows, groups], rounded to T when used, or null: 2^(bits − 1)
    const T* bias;               // [rows], or null
    T* y;                        // [tokens, rows]
    std::int64_t tokens, rows, columns, row_bytes, groups, group_size;
    int bits;
    Rounding rounding;
    float input_scale;  // of kInt8Tensor
    float input_zero;   // of kInt8Tensor; 0 where the range is symmetric
    Coding coding;      // what codes stand for; middle() stands for 0 where there are no zeros
    const float* divisor = nullptr;  // the scale of scales: [1], or [rows] if `divisor_rows`; or null
    bool divisor_rows = false;
    const float* units = nullptr;  // of superblocks, what scales and then zeros are multiplied by: [rows, 1 or 2, superblocks]
    std::int64_t superblocks = 0;  // of a row
    const Interleaved* interleaved = nullptr;  // the weight prepacked, which vector kernels read instead; or null
};

// A run of columns that is unpacked and multiplied at once.
struct Chunk {
    std::int64_t begin, end;  // columns, all of one group
    std::int64_t group, superblock;
    std::int64_t offset;  // steps before it
    std::int64_t padded;  // its columns, filled up to whole blocks
    std::int64_t steps;   // what a multiplication takes at once of a row, 32 bits of activations: two columns or four
    std::int64_t whole;   // its first blocks that lie in a row as they are needed, all their bytes
    bool opens, closes;   // whether it is the first and the last of its span
};

// Sixteen rows of the weight. Where fewer are left, the last one stands in for the others.
struct RowBlock {
    const std::uint8_t* rows[kRows];
    const std::uint32_t* words;  // [word][kRows] where they are prepacked; there are no rows then, or else null
    const float* scale;  // [groups][kRows], or null where there are integers
    const float* zero;   // [groups][kRows], or null: Columns::middle() for all
    const std::int8_t* whole_scale;  // [groups][kRows], of superblocks that are prepacked, or null
    const std::int8_t* whole_zero;   // the same of minimums, or null
    const float* unit;               // [superblocks][kRows]: scale is whole_scale · unit
    const float* zero_unit;          // [superblocks][kRows]
    bool minimums;                   // zeros are subtracted as they are, and not in units of the scale
};

// How the rows are cut into chunks and blocks.
//
// A 32-bit lane d of a block holds 8 or 4 neighbouring codes. Shifting by `j` codes and masking leaves some of them as
// 16-bit or 8-bit integers, `shifts()` codes apart, so activations are kept in that order: [j][d][2 or 4].
struct Columns {
    Columns(std::int64_t columns, std::int64_t group_size, int bits, const Coding& coding, std::int64_t row_bytes,
            Rounding rounding, bool in_bytes, Isa isa, bool interleaved = false, std::int64_t superblocks = 0);

    int bits;
    Coding coding;
    std::int64_t row_bytes;
    bool in_bytes;  // activations have 8 bits and are multiplied as such
    bool deposit;   // codes of other widths are spread by an instruction
    Shape shape;
    bool direct;  // blocks lie in the packed rows as they are needed
    bool even;    // every chunk is a span, a group and a block, and superblocks have as many each
    std::int64_t steps;
    std::int64_t matrix_steps;  // of a matrix, which AMX multiplies at once: 64 columns, or 32 where a chunk wants it
    std::vector<Chunk> chunks;

    std::int64_t block_bytes() const { return words_of(shape) * 4; }
    bool in_table() const { return coding.is_table && in_nibbles(shape); }  // nibbles, which are no integers yet
    std::int64_t lanes() const { return lanes_of(shape); }
    std::int64_t lane_codes() const { return lane_codes_of(shape); }
    std::int64_t block_codes() const { return lanes() * lane_codes(); }
    std::int64_t step_codes() const { return in_bytes ? 4 : 2; }
    std::int64_t shifts() const { return lane_codes() / step_codes(); }
    // Words of a row that is prepacked.
    std::int64_t words() const { return steps * step_codes() / block_codes() * words_of(shape); }
    std::int64_t words(const Chunk& chunk) const { return chunk.padded / block_codes() * words_of(shape); }
    const std::uint32_t* words_from(const Chunk& chunk, const RowBlock& block) const {
        return block.words + chunk.offset * step_codes() / block_codes() * words_of(shape) * kRows;
    }
    std::int32_t middle() const { return coding.middle; }

    // Place of column `column` of a block among the block's activations.
    std::int64_t place(std::int64_t column) const {
        const std::int64_t d = column / lane_codes(), within = column % lane_codes();
        return (within % shifts() * lanes() + d) * step_codes() + within / shifts();
    }
};

// What a step of a tile has beside its activations; both together are what was meant.
struct Overflow {
    std::int32_t step;  // of its chunk
    std::int32_t codes[kTile];
};

// The activations of all tokens as integers.
struct Activations {
    std::int32_t* codes;  // [chunk][tile][step][tokens of the tile], each two or four columns; filled up with zeros
    std::int32_t* low;    // of 16-bit activations that are multiplied as bytes: q = 256·codes + low; or null
    bool in_matrices;     // codes are [chunk][tile][matrix][token of the tile][step of the matrix], tiles all whole
    float* scale;         // [chunk][tokens]
    std::int32_t* shift;  // [chunk][tokens]: Σ q since the span began; −middle() · Σ q for a weight without zeros
    Overflow* overflow;       // [chunk][tile][step], of which the first so many are there:
    std::int32_t* overflows;  // [chunk][tile], or null where no step can have any
    std::int64_t tokens;  // in matrices, with those that fill the last tile up
    std::int64_t tile;    // tokens of a tile; the last may have fewer

    // Where those of `token` begin; those of the next step lie `apart(token)` further on.
    std::int64_t of(const Chunk& chunk, std::int64_t token) const {
        const std::int64_t first = token / tile * tile;
        return chunk.offset * tokens + first * chunk.steps + (token - first);
    }
    // Where those of a whole tile begin that lie in matrices.
    std::int64_t of_tile(const Chunk& chunk, std::int64_t token) const {
        return (chunk.offset * tiles() + token / tile * chunk.steps) * tile;
    }
    std::int64_t apart(std::int64_t token) const { return std::min(tile, tokens - token / tile * tile); }
    std::int64_t tiles() const { return (tokens + tile - 1) / tile; }
    Overflow* overflow_of(const Chunk& chunk, std::int64_t token) const {
        return overflow + chunk.offset * tiles() + token / tile * chunk.steps;
    }
};

// Code `index` of a packed row.
unsigned code_at(const std::uint8_t* row, std::int64_t index, int bits);

// Write token `token` of the activations.
template <typename T>
void quantize_token(const LinearCall<T>& call, const Columns& columns, const Activations& activations,
                    std::int64_t token, Isa isa);

// Put the overflow of the tile that begins with `token` by. Returns how many steps have any.
std::int64_t split_overflow(const Columns& columns, const Activations& activations, std::int64_t token);

// The bytes of any block, also of those that are not `whole`: they end with the row, or are of another width.
void copy_block(const Columns& columns, const Chunk& chunk, const std::uint8_t* row, std::int64_t block,
                std::uint8_t* out);

// Whether this processor has that instruction.
bool can_deposit();

// Σ over spans, for the tokens begin … end and all rows of as many blocks as the plan takes together: float
// [block][end − begin][kRows].
using BlockKernel = void(const Columns&, const RowBlock*, const Activations&, std::int64_t begin, std::int64_t end,
                         float* sums);
BlockKernel block_scalar;
BlockKernel block_gemm_avx2, block_gemm_avx512, block_gemm_amx;  // best for many tokens
BlockKernel block_dot_avx2;                                         // best for a few
BlockKernel block_interleaved_avx2, block_interleaved_avx512;       // best for a few, of a weight that is prepacked
BlockKernel block_superblocks_avx512;  // the same of superblocks, 16-bit inputs of which are multiplied as two bytes

// What `of` gives for the shape and for whether a table is looked up, both of which it is called with as types.
template <bool interleaved = false, typename Of>
auto for_shape(const Columns& columns, Of of) {
    using std::integral_constant;
    using kNibbles = integral_constant<Shape, Shape::kNibbles>;
    using kHalf = integral_constant<Shape, Shape::kHalfNibbles>;
    using kQuarter = integral_constant<Shape, Shape::kQuarterNibbles>;
    const bool table = columns.in_table();
    if constexpr (interleaved) {
        switch (columns.shape) {
            case Shape::kSixes: return of(integral_constant<Shape, Shape::kSixes>(), std::false_type());
            case Shape::kFives: return of(integral_constant<Shape, Shape::kFives>(), std::false_type());
            case Shape::kPairs: return of(integral_constant<Shape, Shape::kPairs>(), std::false_type());
            default: break;
        }
    }
    switch (columns.shape) {
        case Shape::kNibbles: return table ? of(kNibbles(), std::true_type()) : of(kNibbles(), std::false_type());
        case Shape::kHalfNibbles: return table ? of(kHalf(), std::true_type()) : of(kHalf(), std::false_type());
        case Shape::kQuarterNibbles: return table ? of(kQuarter(), std::true_type()) : of(kQuarter(), std::false_type());
        case Shape::kHalfBytes: return of(integral_constant<Shape, Shape::kHalfBytes>(), std::false_type());
        default: return of(integral_constant<Shape, Shape::kBytes>(), std::false_type());
    }
}

// The whole call on `threads` threads.
template <typename T>
void quantized_linear(const LinearCall<T>& call, int threads, Isa isa);

}  // namespace goldstick
