// Cuts the columns, shares rows and tokens out among threads, and writes the results.
#include "linear/linear.hpp"

#include "base/buffer.hpp"
#include "base/floats.hpp"
#include "linear/gather.hpp"
#include "base/inline.hpp"
#include "linear/interleaved.hpp"
#include "linear/plan.hpp"
#include "base/work_queue.hpp"

namespace goldstick {

namespace {

constexpr std::int64_t kSpan16 = 128;    // 128 products of 8 and 16 bits, and half of what 32 bits hold
constexpr std::int64_t kSpan8 = 32768;   // as many products of 8 and 9 bits
constexpr std::int64_t kHalfMatrix = 32;  // columns of the half of a matrix of AMX
constexpr std::int64_t kQuantizedAlone = 16, kNeighbours = 64;
constexpr std::int64_t kOverflowShare = 4;  // with more than one overflow in so many steps, 16 bits are faster

// What sums of `count` rows come to, from `row` on, where codes are not the integers themselves or scales have a scale.
template <typename T>
GOLDSTICK_INLINE const float* in_units(const LinearCall<T>& call, std::int64_t row, std::int64_t count, const float* sum,
                                       float* out) {
    if (call.coding.unit == 1.0f && !call.divisor) {
        return sum;
    }
    for (std::int64_t r = 0; r < count; ++r) {
        const float divisor = !call.divisor ? 1.0f : call.divisor[call.divisor_rows ? row + r : 0];
        out[r] = sum[r] * call.coding.unit / divisor;
    }
    return out;
}

// The rows of some blocks, from `first` on, for the tokens begin … end, as far as there are any.
template <typename T>
GOLDSTICK_INLINE void write_in(const LinearCall<T>& call, std::int64_t blocks, const float* sums, std::int64_t first,
                               std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < std::min(end, call.tokens); ++token) {
        for (std::int64_t b = 0; b < blocks; ++b) {
            const std::int64_t row = first + b * kRows, count = std::min(kRows, call.rows - row);
            float units[kRows];
            const float* sum = in_units(call, row, count, sums + (b * (end - begin) + token - begin) * kRows, units);
            T* y = call.y + token * call.rows + row;
            if (const T* const bias = call.bias ? call.bias + row : nullptr) {
                for (std::int64_t r = 0; r < count; ++r) store(y + r, round_to<T>(sum[r] + to_float(bias[r])));
            } else {
                for (std::int64_t r = 0; r < count; ++r) store(y + r, round_to<T>(sum[r]));
            }
        }
    }
}

template <typename T>
GOLDSTICK_AVX2 void write_avx2(const LinearCall<T>& call, std::int64_t blocks, const float* sums, std::int64_t first,
                               std::int64_t begin, std::int64_t end) {
    write_in(call, blocks, sums, first, begin, end);
}
template <typename T>
void write_scalar(const LinearCall<T>& call, std::int64_t blocks, const float* sums, std::int64_t first,
                  std::int64_t begin, std::int64_t end) {
    write_in(call, blocks, sums, first, begin, end);
}

}  // namespace

namespace {

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
    const std::int64_t longest = rounding == Rounding::kInt16 ? kSpan16 : kSpan8;
    const std::int64_t chunk_size = rounding == Rounding::kInt16 ? kSpan16 : kChunk;
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
}

namespace {

// Memory for the activations of all tokens.
class ActivationMemory {
public:
    ActivationMemory(const Columns& columns, const Plan& plan, std::int64_t tokens)
        : plan_(plan),
          tokens_(plan.in_matrices() ? plan.tiles * plan.tile : tokens),
          codes_(columns.steps * tokens_),
          low_(plan.halved ? columns.steps * tokens_ : 0),
          shift_(static_cast<std::int64_t>(columns.chunks.size()) * tokens_),
          overflows_(plan.may_exceed ? static_cast<std::int64_t>(columns.chunks.size()) * plan.tiles : 0),
          scale_(static_cast<std::int64_t>(columns.chunks.size()) * tokens_),
          overflow_(plan.may_exceed ? columns.steps * plan.tiles : 0) {
        for (std::int64_t first = 0; first < shift_.count(); first += tokens_) {
            std::fill(shift_.data() + first + tokens, shift_.data() + first + tokens_, 0);
            std::fill(scale_.data() + first + tokens, scale_.data() + first + tokens_, 0.0f);
        }
    }

    Activations activations() const {
        return {codes_.data(), plan_.halved ? low_.data() : nullptr, plan_.in_matrices(), scale_.data(), shift_.data(),
                overflow_.data(), plan_.may_exceed ? overflows_.data() : nullptr, tokens_, plan_.tile};
    }

private:
    const Plan& plan_;
    std::int64_t tokens_;
    Buffer<std::int32_t> codes_, low_, shift_, overflows_;
    Buffer<float> scale_;
    Buffer<Overflow> overflow_;
};

// Whether the activations were such as could be multiplied in this way.
template <typename T>
bool multiply(const LinearCall<T>& call, int threads, const Plan& plan) {
    const Interleaved* const interleaved = plan.interleaved ? call.interleaved : nullptr;
    const Columns columns(call.columns, call.group_size, call.bits, call.coding, call.row_bytes, call.rounding,
                          plan.in_bytes, plan.isa, plan.interleaved, call.superblocks);
    const ActivationMemory memory(columns, plan, call.tokens);
    const Activations activations = memory.activations();
    std::int64_t exceeding = 0;
    // One thread alone is done with few tokens before another is there.
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : exceeding) \
    if (threads > 1 && call.tokens > kQuantizedAlone)
    for (std::int64_t first = 0; first < call.tokens; first += plan.tile) {
        for (std::int64_t token = first; token < std::min(first + plan.tile, call.tokens); ++token) {
            quantize_token(call, columns, activations, token, plan.isa);
        }
        exceeding += plan.may_exceed ? split_overflow(columns, activations, first) : 0;
    }
    if (exceeding > columns.steps * plan.tiles / kOverflowShare) {
        return false;
    }
    BlockKernel* const run = plan.kernel();
    auto* const write = plan.isa != Isa::kScalar ? write_avx2<T> : write_scalar<T>;
    const std::int64_t together = plan.blocks() * kRows, blocks = (call.rows + together - 1) / together;
    const std::int64_t at_most = plan.tokens_of_part(blocks, threads);
    const std::int64_t items = blocks * ((activations.tokens + at_most - 1) / at_most);
    // Of few tokens a thread takes half of its part of what is left: neighbours, whose memory is called for ahead.
    WorkQueue shares(items, plan.few ? 2 : call.tokens <= kNeighbours ? 4 : 1, plan.few ? 2 * threads : 0);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const std::int64_t gathered = interleaved ? 0 : call.groups * together;
        const Buffer<float> scale(gathered), zero(gathered);
        const Buffer<float> sums(at_most * together);
        for (std::int64_t item = 0, stop = 0; item < stop || shares.take(item, stop); ++item) {
            const std::int64_t first = item % blocks * together, begin = item / blocks * at_most;
            const std::int64_t end = std::min(begin + at_most, activations.tokens);
            RowBlock rows[kBlocks];
            for (std::int64_t b = 0; b < plan.blocks(); ++b) {
                const std::int64_t row = first + b * kRows, at = interleaved ? 0 : b * call.groups * kRows;
                rows[b] = row >= call.rows ? rows[b - 1]  // stands in for rows that are not there
                          : interleaved    ? interleaved->block(row)
                                           : gather_block(call, row, scale.data() + at, zero.data() + at);
            }
            run(columns, rows, activations, begin, end, sums.data());
            write(call, plan.blocks(), sums.data(), first, begin, end);
        }
    }
    return true;
}

}  // namespace

template <typename T>
void quantized_linear(const LinearCall<T>& call, int threads, Isa isa) {
    if (!multiply(call, threads, plan_of(call, isa))) {
        multiply(call, threads, plan_of(call, isa, false));
    }
}

template void quantized_linear<float>(const LinearCall<float>&, int, Isa);
template void quantized_linear<bfloat16>(const LinearCall<bfloat16>&, int, Isa);
template void quantized_linear<float16>(const LinearCall<float16>&, int, Isa);

}  // namespace goldstick
