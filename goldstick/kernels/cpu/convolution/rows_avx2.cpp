// Rows of depthwise convolutions with AVX2: 16 channels side by side, two taps at a time.
#include "convolution/depthwise_rows.hpp"
#include "convolution/finish_avx2.hpp"
#include "convolution/past_caches.hpp"

#if defined(__x86_64__)
#include <algorithm>

namespace goldstick {
namespace {

constexpr std::int64_t kLanes = 8, kBlock = 2 * kLanes;

GOLDSTICK_AVX2 bool lay(const float* x, std::int64_t pixels, std::int64_t channels, const ImageScale& how,
                        std::int16_t* to) {
    const std::int64_t whole = channels / kBlock * kBlock, rest = channels - whole;
    if (rest == 0) {
        return codes_avx2<float, std::int16_t, true>(x, pixels * channels, how, to);
    }
    bool numbers = true;
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels, to += whole + kBlock) {
        alignas(32) float last[kBlock] = {};
        std::copy_n(x + whole, rest, last);
        numbers &= codes_avx2<float, std::int16_t, true>(x, whole, how, to);
        numbers &= codes_avx2<float, std::int16_t, true>(last, kBlock, how, to + whole);
    }
    return numbers;
}

GOLDSTICK_AVX2 void lay_bytes(const std::uint8_t* x, std::int64_t pixels, std::int64_t channels, std::int16_t shift,
                              std::int16_t* to) {
    const __m256i more = _mm256_set1_epi16(shift);
    const auto sixteen = [&](const std::uint8_t* from) GOLDSTICK_AVX2 {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        const __m256i packed = _mm256_cvtepu8_epi16(_mm_shuffle_epi32(bytes, 0xd8));  // as packing leaves them
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_sub_epi16(packed, more));
        to += kBlock;
    };
    const std::int64_t whole = channels / kBlock * kBlock, rest = channels - whole;
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels) {
        for (std::int64_t c = 0; c < whole; c += kBlock) {
            sixteen(x + c);
        }
        if (rest) {
            std::uint8_t last[kBlock] = {};  // what lies where there is no channel is multiplied by 0
            std::copy_n(x + whole, rest, last);
            sixteen(last);
        }
    }
}

GOLDSTICK_AVX2 inline __m256i at(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// What the sums of a block of channels become, and where.
class Finish {
public:
    GOLDSTICK_AVX2 Finish(const OutputRow& row, std::int64_t first)
        : y_(row.y + first), all_(row.channels), channels_(std::min(row.channels - first, kBlock)),
          past_caches_(row.past_caches && channels_ == kBlock && all_ % kBlock == 0 && on_a_line(y_)),
          low_({row.by, row.shift, row.least, row.most, false}, first),
          high_({row.by, row.shift, row.least, row.most, false}, first + kLanes) {}

    // The next pixel.
    GOLDSTICK_AVX2 GOLDSTICK_INLINE void operator()(__m256i low, __m256i high) {
        const __m256 one = low_(_mm256_cvtepi32_ps(low)), other = high_(_mm256_cvtepi32_ps(high));
        if (past_caches_) {
            _mm256_stream_ps(y_, one);
            _mm256_stream_ps(y_ + kLanes, other);
        } else if (channels_ == kBlock) {
            _mm256_storeu_ps(y_, one);
            _mm256_storeu_ps(y_ + kLanes, other);
        } else {
            alignas(32) float few[kBlock];
            _mm256_store_ps(few, one);
            _mm256_store_ps(few + kLanes, other);
            std::copy_n(few, channels_, y_);
        }
        y_ += all_;
    }

private:
    float* y_;
    std::int64_t all_, channels_;
    bool past_caches_;
    WideFinish low_, high_;
};

// A block of channels of all pixels of a row. With `count` positions known, nothing is left of the loop over them.
template <int count>
GOLDSTICK_AVX2 void multiply_block(const ConvolutionShape& shape, const OutputRow& row, std::int64_t first) {
    const std::int64_t positions = count ? count : shape.positions(), pairs = (positions + 1) / 2;
    const std::int64_t tap_slots = row.tap_slots;
    const std::int16_t* const taps = row.taps + 2 * first;
    const std::int16_t* from[count ? count + 1 : kDepthwisePositions + 1];
    for (std::int64_t position = 0; position < positions; ++position) {
        const std::int64_t j = position % shape.kernel_columns * shape.dilation_columns;
        from[position] = row.rows[position / shape.kernel_columns] + j * row.slots + first;
    }
    from[positions] = from[positions - 1];  // its tap is 0 where there is none
    Finish finish(row, first);
    const std::int64_t step = shape.stride_columns * row.slots;
    for (std::int64_t column = 0, end = row.columns * step; column < end; column += step) {
        __m256i low = _mm256_setzero_si256(), high = low;
#pragma GCC unroll 5
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
            const __m256i one = at(from[2 * pair] + column), other = at(from[2 * pair + 1] + column);
            const std::int16_t* const both = taps + 2 * pair * tap_slots;
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(one, other), at(both)));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(one, other), at(both + kBlock)));
        }
        finish(low, high);
    }
}

// Two vectors of 32-bit lanes, for the channels of a block.
struct Two {
    __m256i low, high;
};

GOLDSTICK_AVX2 GOLDSTICK_INLINE Two interleaved(__m256i one, __m256i other) {
    return {_mm256_unpacklo_epi16(one, other), _mm256_unpackhi_epi16(one, other)};
}
GOLDSTICK_AVX2 GOLDSTICK_INLINE Two interleaved_at(const std::int16_t* one, const std::int16_t* other) {
    return interleaved(at(one), at(other));
}

// The taps of a kernel of three by three, [pair][low, high]: two rows of each column, then the third row's columns 0 and
// 1, then 2 alone.
struct ThreeTaps {
    GOLDSTICK_AVX2 ThreeTaps(const OutputRow& row, std::int64_t first) {
        for (int half = 0; half < 2; ++half) {
            __m256i given[5];  // two positions as they follow each other
            for (int i = 0; i < 5; ++i) {
                given[i] = at(row.taps + 2 * (i * row.tap_slots + first) + half * kBlock);
            }
            store(0, half, _mm256_blend_epi16(given[0], given[1], 0xaa));
            store(1, half, _mm256_or_si256(_mm256_srli_epi32(given[0], 16), _mm256_slli_epi32(given[2], 16)));
            store(2, half, _mm256_blend_epi16(given[1], given[2], 0xaa));
            store(3, half, given[3]);
            store(4, half, given[4]);
        }
    }

    GOLDSTICK_AVX2 GOLDSTICK_INLINE void add(__m256i& low, __m256i& high, const Two& codes, int pair) const {
        low = _mm256_add_epi32(low, _mm256_madd_epi16(codes.low, at(taps_[pair][0])));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(codes.high, at(taps_[pair][1])));
    }

private:
    GOLDSTICK_AVX2 void store(int pair, int half, __m256i taps) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(taps_[pair][half]), taps);
    }

    alignas(32) std::int16_t taps_[5][2][kBlock];
};

// multiply_block() of kernels of three by three: codes of two rows are interleaved once for all columns of the kernel.
template <int stride>
GOLDSTICK_AVX2 void multiply_three(const OutputRow& row, std::int64_t block) {
    const std::int64_t slots = row.slots;
    const std::int16_t *first = row.rows[0] + block, *second = row.rows[1] + block, *third = row.rows[2] + block;
    const ThreeTaps taps(row, block);
    Finish finish(row, block);
    Two before = interleaved_at(first, second), middle = interleaved_at(first + slots, second + slots);
    Two pair = interleaved_at(third, third + slots), pair_between = interleaved_at(third + slots, third + 2 * slots);
    __m256i next = at(third + 2 * slots);
#pragma GCC unroll 2
    for (std::int64_t column = 0, columns = row.columns; column < columns; ++column) {
        __m256i low = _mm256_setzero_si256(), high = low;
        taps.add(low, high, before, 0);
        taps.add(low, high, middle, 1);
        taps.add(low, high, pair, 3);
        const Two after = interleaved_at(first + 2 * slots, second + 2 * slots);
        taps.add(low, high, after, 2);
        const __m256i beyond = at(third + 3 * slots);  // its tap is 0
        const Two last = interleaved(next, beyond);
        taps.add(low, high, last, 4);
        finish(low, high);
        if constexpr (stride == 1) {
            before = middle, middle = after;
            pair = pair_between, pair_between = last, next = beyond;
        } else if (column + 1 < columns) {
            before = after, middle = interleaved_at(first + 3 * slots, second + 3 * slots);
            pair = last, next = at(third + 4 * slots);
        }
        first += stride * slots, second += stride * slots, third += stride * slots;
    }
}

void multiply(const ConvolutionShape& shape, const OutputRow& row) {
    const bool three = shape.kernel_rows == 3 && shape.kernel_columns == 3 && shape.dilation_columns == 1;
    for (std::int64_t first = 0; first < row.channels; first += kBlock) {
        if (three && shape.stride_columns == 1) {
            multiply_three<1>(row, first);
        } else if (three && shape.stride_columns == 2) {
            multiply_three<2>(row, first);
        } else {
            (shape.positions() == 9 ? multiply_block<9> : multiply_block<0>)(shape, row, first);
        }
    }
}

}  // namespace

const RowKernels kRowsAvx2{kLanes, lay, lay_bytes, multiply};

}  // namespace goldstick

#endif
