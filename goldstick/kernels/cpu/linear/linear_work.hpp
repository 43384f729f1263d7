// A product in pieces: inputs are rounded once, then items, some rows for some tokens, are multiplied by whoever has time.
#pragma once

#include <cstdint>

#include "base/buffer.hpp"
#include "linear/linear.hpp"
#include "linear/plan.hpp"

namespace goldstick {

template <typename T>
class LinearWork {
public:
    // `threads` are going to work on it. Without `bytes`, 8-bit inputs are multiplied as 16-bit ones.
    LinearWork(const LinearCall<T>& call, int threads, Isa isa, bool bytes = true);

    const Plan& plan() const { return plan_; }

    // Round the inputs of the tile that begins with token `first`. Returns how many steps have to be multiplied twice.
    std::int64_t round_tile(std::int64_t first) const;

    // Whether threads may round parts of the only token, each its own, and so in place of the above.
    bool rounds_in_parts() const;
    void round_part(int thread, int threads) const;

    // Whether those are so many that `bytes` do not pay.
    bool exceeds(std::int64_t steps) const;

    // Blocks of rows, `rows_together()` each, and items: every block for every part of the tokens, part by part.
    std::int64_t rows_together() const { return together_; }
    std::int64_t blocks() const { return blocks_; }
    std::int64_t items() const { return items_; }

    // The tokens of an item.
    std::int64_t first_token(std::int64_t item) const { return item / blocks_ * at_most_; }
    std::int64_t last_token(std::int64_t item) const;

    // What a thread needs to multiply.
    struct Scratch {
        explicit Scratch(const LinearWork& work)
            : scale(work.gathered_), zero(work.gathered_), sums(work.at_most_ * work.together_) {}
        Buffer<float> scale, zero, sums;
    };

    // Multiply an item, after all tiles were rounded.
    void run(std::int64_t item, const Scratch& scratch) const;

    // Where the weight of a block lies, if it is prepacked, and its bytes; else null and 0.
    const void* weight_of(std::int64_t block) const;
    std::int64_t bytes_of_block() const;

private:
    Activations activations() const;

    const LinearCall<T> call_;
    const Plan plan_;
    const Interleaved* const interleaved_;
    const Columns columns_;
    const std::int64_t tokens_;  // with those that fill the last tile up
    const std::int64_t at_most_, together_, blocks_, items_, gathered_;
    Buffer<std::int32_t> codes_, low_, shift_, overflows_;
    Buffer<float> scale_;
    Buffer<Overflow> overflow_;
};

}  // namespace goldstick
