#include "linear/linear_work.hpp"

#include <algorithm>

#include "base/floats.hpp"
#include "base/inline.hpp"
#include "linear/gather.hpp"
#include "linear/interleaved.hpp"
#include "linear/rounding.hpp"

namespace goldstick {

namespace {

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

template <typename T>
LinearWork<T>::LinearWork(const LinearCall<T>& call, int threads, Isa isa, bool bytes)
    : call_(call),
      plan_(plan_of(call, isa, bytes)),
      interleaved_(plan_.interleaved ? call.interleaved : nullptr),
      columns_(call.columns, call.group_size, call.bits, call.coding, call.row_bytes, call.rounding, plan_.in_bytes,
               plan_.isa, plan_.interleaved, call.superblocks),
      tokens_(plan_.in_matrices() ? plan_.tiles * plan_.tile : call.tokens),
      at_most_(plan_.tokens_of_part((call.rows + plan_.blocks() * kRows - 1) / (plan_.blocks() * kRows), threads)),
      together_(plan_.blocks() * kRows),
      blocks_((call.rows + together_ - 1) / together_),
      items_(blocks_ * ((tokens_ + at_most_ - 1) / at_most_)),
      gathered_(interleaved_ ? 0 : call.groups * together_),
      codes_(columns_.steps * tokens_),
      low_(plan_.halved ? columns_.steps * tokens_ : 0),
      shift_(static_cast<std::int64_t>(columns_.chunks.size()) * tokens_),
      overflows_(plan_.may_exceed ? static_cast<std::int64_t>(columns_.chunks.size()) * plan_.tiles : 0),
      scale_(shift_.count()),
      overflow_(plan_.may_exceed ? columns_.steps * plan_.tiles : 0) {
    for (std::int64_t first = 0; first < shift_.count(); first += tokens_) {
        std::fill(shift_.data() + first + call.tokens, shift_.data() + first + tokens_, 0);
        std::fill(scale_.data() + first + call.tokens, scale_.data() + first + tokens_, 0.0f);
    }
}

template <typename T>
Activations LinearWork<T>::activations() const {
    return {codes_.data(), plan_.halved ? low_.data() : nullptr, plan_.in_matrices(), scale_.data(), shift_.data(),
            overflow_.data(), plan_.may_exceed ? overflows_.data() : nullptr, tokens_, plan_.tile};
}

template <typename T>
std::int64_t LinearWork<T>::round_tile(std::int64_t first) const {
    const Activations rounded = activations();
    for (std::int64_t token = first; token < std::min(first + plan_.tile, call_.tokens); ++token) {
        quantize_token(call_, columns_, rounded, token, plan_.isa);
    }
    return plan_.may_exceed ? split_overflow(columns_, rounded, first) : 0;
}

template <typename T>
bool LinearWork<T>::rounds_in_parts() const {
    return call_.tokens == 1 && by_span(call_.rounding) && !plan_.may_exceed && !plan_.in_matrices();
}

template <typename T>
void LinearWork<T>::round_part(int thread, int threads) const {
    const auto chunks = static_cast<std::int64_t>(columns_.chunks.size());
    const auto first_of = [&](int part) {
        std::int64_t first = chunks * part / threads;
        while (first < chunks && !columns_.chunks[static_cast<std::size_t>(first)].opens) ++first;
        return first;
    };
    quantize_chunks(call_, columns_, activations(), 0, first_of(thread), first_of(thread + 1), plan_.isa);
}

template <typename T>
bool LinearWork<T>::exceeds(std::int64_t steps) const {
    return steps > columns_.steps * plan_.tiles / kOverflowShare;
}

template <typename T>
std::int64_t LinearWork<T>::last_token(std::int64_t item) const {
    return std::min(first_token(item) + at_most_, tokens_);
}

template <typename T>
void LinearWork<T>::run(std::int64_t item, const Scratch& scratch) const {
    const std::int64_t first = item % blocks_ * together_, begin = first_token(item), end = last_token(item);
    RowBlock rows[kBlocks];
    for (std::int64_t b = 0; b < plan_.blocks(); ++b) {
        const std::int64_t row = first + b * kRows, at = interleaved_ ? 0 : b * call_.groups * kRows;
        rows[b] = row >= call_.rows ? rows[b - 1]  // stands in for rows that are not there
                  : interleaved_    ? interleaved_->block(row)
                                    : gather_block(call_, row, scratch.scale.data() + at, scratch.zero.data() + at);
    }
    plan_.kernel()(columns_, rows, activations(), begin, end, scratch.sums.data());
    auto* const write = plan_.isa != Isa::kScalar ? write_avx2<T> : write_scalar<T>;
    write(call_, plan_.blocks(), scratch.sums.data(), first, begin, end);
}

template <typename T>
const void* LinearWork<T>::weight_of(std::int64_t block) const {
    return interleaved_ ? interleaved_->block(block * together_).words : nullptr;
}

template <typename T>
std::int64_t LinearWork<T>::bytes_of_block() const {
    return interleaved_ ? columns_.words() * together_ * static_cast<std::int64_t>(sizeof(std::uint32_t)) : 0;
}

template class LinearWork<float>;
template class LinearWork<bfloat16>;
template class LinearWork<float16>;

}  // namespace goldstick
