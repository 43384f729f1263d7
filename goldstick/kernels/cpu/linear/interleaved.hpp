// A weight prepacked: 16 rows side by side, so that a lane of a vector is a row, in the order in which they are read.
#pragma once

#include <cstdint>

#include "base/buffer.hpp"
#include "linear/linear.hpp"

namespace goldstick {

// Codes of 3 and 4 bits fill 4, and those of a table or of 7 and 8 bits 8: a 32-bit word holds 8 or 4 neighbouring codes of
// a row. Others are split where that saves memory (shape.hpp). The words of 16 rows lie side by side, [block of
// rows][word][kRows], and of scales and zeros the floats, [block of rows][group][kRows]; of superblocks the integers, where
// they are such of 8 bits, and the floats of superblocks.
// Chunks are filled up to whole blocks of columns, and the last block of rows with its last row.
class Interleaved {
public:
    // The layout of a call's weight; only its weight, scales, zeros and their sizes are read.
    template <typename T>
    explicit Interleaved(const LinearCall<T>& call);

    // The rows from `first` on, a multiple of kRows.
    RowBlock block(std::int64_t first) const;

    // Whether superblocks lie as their own kernel reads them.
    bool in_superblocks() const { return in_superblocks_; }

    // Whether what is filled up is little beside the codes.
    template <typename T>
    static bool pays(const LinearCall<T>& call);

private:
    std::int64_t row_words_, groups_;
    Buffer<std::uint32_t> words_;
    std::int64_t superblocks_;
    bool whole_, has_zero_, in_superblocks_;
    Buffer<float> scale_, zero_;  // of groups, or where scales are whole of superblocks
    Buffer<std::int8_t> whole_scale_, whole_zero_;
};

}  // namespace goldstick
