// Rows of float codes are shared out among threads, and given to the kernels of an instruction set.
#include "codes/float_codes.hpp"

#include <algorithm>
#include <cmath>

#include "base/buffer.hpp"
#include "base/work_queue.hpp"
#include "codes/float_row_kernels.hpp"

namespace goldstick {
namespace {

constexpr std::int64_t kShortGroup = 128;
constexpr std::int64_t kBlock = 8;  // rows that a thread takes at once, at least

FloatRowKernels kernels_of(const FloatCodes& codes, Isa isa) {
#if defined(__x86_64__)
    if (isa >= Isa::kAvx512) return float_rows_avx512(codes.widening);
    if (isa == Isa::kAvx2) return float_rows_avx2(codes.widening);
#endif
    static_cast<void>(isa);
    return float_rows_scalar(codes.widening);
}

// The inputs, multiplied by a power of two of each token's own where values of codes are smaller than they should be: no
// product leaves the range in which floats are exact.
class Inputs {
public:
    Inputs(const FloatCodes& codes, const float* given, std::int64_t tokens)
        : given_(given), tokens_(tokens), grown_(exponent_of(codes.widening) ? tokens * codes.columns : 0),
          back_(exponent_of(codes.widening) ? tokens : 0) {
        for (std::int64_t t = 0; t < back_.count(); ++t) {
            const float* const from = given + t * codes.columns;
            float* const to = grown_.data() + t * codes.columns;
            std::int32_t largest = 0;  // |x|, as the bits of a float
            for (std::int64_t i = 0; i < codes.columns; ++i) {
                largest = std::max(largest, static_cast<std::int32_t>(bits_of(from[i]) & 0x7fffffffu));
            }
            const int up = std::min(kWanted + 127 - (largest >> 23), 127);
            const float factor = std::ldexp(1.0f, up);
            const std::int64_t arranged = in_blocks(codes) ? codes.columns / kBlockColumns * kBlockColumns : 0;
            for (std::int64_t i = 0; i < arranged; i += 4) {  // which stay side by side
                float* const four = to + place_in_block(i);
                for (int j = 0; j < 4; ++j) four[j] = from[i + j] * factor;
            }
            for (std::int64_t i = arranged; i < codes.columns; ++i) to[i] = from[i] * factor;
            back_.data()[t] = exponent_of(codes.widening) - up;
        }
    }

    const float* x() const { return back_.count() ? grown_.data() : given_; }

    // Make results of these rows what they are without it.
    void undo(float* y, std::int64_t rows, std::int64_t first, std::int64_t count) const {
        for (std::int64_t t = 0; t < back_.count(); ++t) {
            for (std::int64_t r = first; r < first + count; ++r) {
                y[t * rows + r] = std::ldexp(y[t * rows + r], back_.data()[t]);
            }
        }
    }

private:
    static constexpr int kWanted = 100;  // exponent of a token's largest input

    static int exponent_of(Widening widening) {
        return widening == Widening::kE4m3   ? -std::ilogb(kShrunk<Widening::kE4m3>)
               : widening == Widening::kE5m2 ? -std::ilogb(kShrunk<Widening::kE5m2>)
                                             : 0;
    }

    const float* given_;
    std::int64_t tokens_;
    Buffer<float> grown_;
    Buffer<int> back_;
};

}  // namespace

template <typename T>
void dequantize_float_codes(const FloatCodes& codes, T* out, int threads, Isa isa) {
    const FloatRowKernels kernels = kernels_of(codes, isa);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t row = 0; row < codes.rows; ++row) {
        dequantize_with(kernels, codes, row, out + row * codes.columns);
    }
}

void multiply_float_codes(const FloatCodes& codes, const float* given, std::int64_t tokens, float* y, int threads,
                          Isa isa) {
    const Inputs inputs(codes, given, tokens);
    const float* const x = inputs.x();
    // For one token memory sets the pace, which the processor calls for by itself ahead of AVX2's loads; where many groups
    // end, vectors of sixteen do.
    const bool narrow = tokens == 1 && in_blocks(codes) && codes.group_size > kShortGroup;
    auto* const run = kernels_of(codes, narrow ? std::min(isa, Isa::kAvx2) : isa).multiply;
    // A thread takes half of its part of what is left: neighbours, whose memory is called for ahead.
    WorkQueue shares((codes.rows + kBlock - 1) / kBlock, 2, 2 * threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (std::int64_t block = 0, stop = 0; shares.take(block, stop);) {
        for (; block < stop; ++block) {
            const std::int64_t first = block * kBlock;
            const std::int64_t count = std::min(kBlock, codes.rows - first);
            run(codes, first, count, x, tokens, y);
            inputs.undo(y, codes.rows, first, count);
        }
    }
}

template void dequantize_float_codes<float>(const FloatCodes&, float*, int, Isa);
template void dequantize_float_codes<bfloat16>(const FloatCodes&, bfloat16*, int, Isa);
template void dequantize_float_codes<float16>(const FloatCodes&, float16*, int, Isa);

}  // namespace goldstick
