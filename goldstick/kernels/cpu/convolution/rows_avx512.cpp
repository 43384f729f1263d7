// Rows of depthwise convolutions with AVX-512: 32 channels side by side, two taps at a time.
#include "convolution/depthwise_rows.hpp"
#include "convolution/past_caches.hpp"
#include "linear/avx512.hpp"

#if defined(__x86_64__)
#include <algorithm>

namespace goldstick {
namespace {

constexpr std::int64_t kLanes = 16, kBlock = 2 * kLanes;

GOLDSTICK_AVX512 inline __mmask16 first_lanes(std::int64_t count) {
    return static_cast<__mmask16>(count >= kLanes ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// How numbers become codes, as Rounder does it.
template <Rounding rounding>
class WideRounder {
public:
    GOLDSTICK_AVX512 explicit WideRounder(const ImageScale& how)
        : factor_(_mm512_set1_ps(how.factor)),
          scale_(_mm512_set1_ps(how.scale)),
          zero_(_mm512_set1_ps(how.zero)),
          shift_(_mm512_set1_epi16(static_cast<std::int16_t>(how.zero))),
          divides_(!kWhole && !(how.factor < 0x1p100f && how.factor > 0x1p-100f)) {}

    // 32 numbers to codes, as packing leaves them.
    GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i operator()(__m512 first, __m512 second, bool& numbers) const {
        const __m512 one = shifted(_mm512_mul_ps(first, factor_)), other = shifted(_mm512_mul_ps(second, factor_));
        __m512i low = _mm512_cvtps_epi32(one), high = _mm512_cvtps_epi32(other);
        if (!kWhole && (divides_ || (kStatic ? far(one, low) || far(other, high) : doubtful(one, other)))) {
            numbers = numbers && !_mm512_cmp_ps_mask(first, first, _CMP_UNORD_Q) &&
                      !_mm512_cmp_ps_mask(second, second, _CMP_UNORD_Q);
            low = divided(first);
            high = divided(second);
        }
        const __m512i packed = _mm512_packs_epi32(low, high);
        if (kWhole) {
            return packed;
        }
        const __m512i below = _mm512_min_epi16(packed, _mm512_set1_epi16(127));
        // By the largest |x| of an image nothing is less than −128, and zero is 0.
        return kStatic ? _mm512_sub_epi16(_mm512_max_epi16(below, _mm512_set1_epi16(-128)), shift_) : below;
    }

private:
    static constexpr bool kWhole = rounding == Rounding::kInt16, kStatic = rounding == Rounding::kInt8Tensor;

    GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512 shifted(__m512 x) const { return kStatic ? _mm512_add_ps(x, zero_) : x; }
    // Whether a product with the inverse may round to another code than the quotient, or is none or beyond all integers.
    GOLDSTICK_AVX512 GOLDSTICK_INLINE static bool far(__m512 value, __m512i rounded) {
        const __m512 off = _mm512_abs_ps(_mm512_sub_ps(value, _mm512_cvtepi32_ps(rounded)));
        return _mm512_cmp_ps_mask(off, _mm512_set1_ps(kNearMiddle), _CMP_NLE_UQ) != 0;
    }
    // The same of two, none of which is beyond: where what is left of one, less its sign, is large. What is left of no
    // number is none, and its bits are larger.
    GOLDSTICK_AVX512 GOLDSTICK_INLINE static bool doubtful(__m512 one, __m512 other) {
        const __m512i first = _mm512_castps_si512(_mm512_reduce_ps(one, 0));
        const __m512i second = _mm512_castps_si512(_mm512_reduce_ps(other, 0));
        const __m512i largest = _mm512_max_epu32(_mm512_add_epi32(first, first), _mm512_add_epi32(second, second));
        const __m512i near = _mm512_castps_si512(_mm512_set1_ps(kNearMiddle));
        return _mm512_cmpgt_epu32_mask(largest, _mm512_add_epi32(near, near)) != 0;
    }
    GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512i divided(__m512 x) const {
        const __m512 value = shifted(_mm512_div_ps(x, scale_));
        const __m512 within = _mm512_min_ps(_mm512_max_ps(value, _mm512_set1_ps(-128.0f)), _mm512_set1_ps(127.0f));
        return _mm512_cvtps_epi32(within);
    }

    __m512 factor_, scale_, zero_;
    __m512i shift_;
    bool divides_;
};

template <Rounding rounding>
GOLDSTICK_AVX512 bool lay_as(const float* x, std::int64_t pixels, std::int64_t channels, const ImageScale& how,
                             std::int16_t* to) {
    const std::int64_t full = channels / kBlock * kBlock, rest = channels - full;
    const WideRounder<rounding> rounded(how);
    bool numbers = true;
    const __mmask16 first = first_lanes(rest), second = first_lanes(rest - kLanes);
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels) {
        for (std::int64_t c = 0; c < full; c += kBlock, to += kBlock) {
            _mm_prefetch(reinterpret_cast<const char*>(x + c + kAhead), _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(x + c + kAhead + kLanes), _MM_HINT_T0);
            _mm512_storeu_si512(to, rounded(_mm512_loadu_ps(x + c), _mm512_loadu_ps(x + c + kLanes), numbers));
        }
        if (rest) {
            const __m512 low = _mm512_maskz_loadu_ps(first, x + full);
            const __m512 high = _mm512_maskz_loadu_ps(second, x + full + kLanes);
            _mm512_storeu_si512(to, rounded(low, high, numbers));
            to += kBlock;
        }
    }
    return numbers;
}

GOLDSTICK_AVX512 bool lay(const float* x, std::int64_t pixels, std::int64_t channels, const ImageScale& how,
                          std::int16_t* to) {
    if (how.scale != how.scale) {
        std::fill_n(to, pixels * ((channels + kBlock - 1) / kBlock * kBlock), std::int16_t{0});
        return true;
    }
    auto* const lays = how.rounding == Rounding::kInt16       ? lay_as<Rounding::kInt16>
                       : how.rounding == Rounding::kInt8Tensor ? lay_as<Rounding::kInt8Tensor>
                                                               : lay_as<Rounding::kInt8Token>;
    return lays(x, pixels, channels, how, to);
}

GOLDSTICK_AVX512 void lay_bytes(const std::uint8_t* x, std::int64_t pixels, std::int64_t channels, std::int16_t shift,
                                std::int16_t* to) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // as packing leaves words
    const __m512i more = _mm512_set1_epi16(shift);
    const std::int64_t full = channels / kBlock * kBlock, rest = channels - full;
    const auto thirty_two = [&](__m256i bytes) GOLDSTICK_AVX512 {
        const __m512i packed = _mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(bytes, order));
        _mm512_storeu_si512(to, _mm512_sub_epi16(packed, more));
        to += kBlock;
    };
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels) {
        for (std::int64_t c = 0; c < full; c += kBlock) {
            thirty_two(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + c)));
        }
        if (rest) {
            alignas(32) std::uint8_t last[kBlock] = {};  // what lies where there is no channel is multiplied by 0
            std::copy_n(x + full, rest, last);
            thirty_two(_mm256_load_si256(reinterpret_cast<const __m256i*>(last)));
        }
    }
}

// Two vectors of 32-bit lanes, for the channels of a block.
struct Two {
    __m512i low, high;
};

GOLDSTICK_AVX512 inline __m512i codes_at(const std::int16_t* from) { return _mm512_load_si512(from); }
GOLDSTICK_AVX512 GOLDSTICK_INLINE Two interleaved(__m512i one, __m512i other) {
    return {_mm512_unpacklo_epi16(one, other), _mm512_unpackhi_epi16(one, other)};
}
GOLDSTICK_AVX512 GOLDSTICK_INLINE Two interleaved_at(const std::int16_t* one, const std::int16_t* other) {
    return interleaved(codes_at(one), codes_at(other));
}
GOLDSTICK_AVX512 GOLDSTICK_INLINE void add(Two& sums, const Two& codes, const Two& taps) {
    sums.low = _mm512_dpwssd_epi32(sums.low, codes.low, taps.low);
    sums.high = _mm512_dpwssd_epi32(sums.high, codes.high, taps.high);
}

// What the sums of a block of channels become, and where.
class Finish {
public:
    GOLDSTICK_AVX512 Finish(const OutputRow& row, std::int64_t block)
        : y_(row.y + block), channels_(row.channels), whole_(block + kBlock <= row.channels),
          past_caches_(row.past_caches && whole_ && row.channels % kLanes == 0 && on_a_line(y_)),
          first_(first_lanes(row.channels - block)),
          second_(first_lanes(row.channels - block - kLanes)), by_(_mm512_loadu_ps(row.by + block)),
          other_by_(_mm512_loadu_ps(row.by + block + kLanes)), shift_(_mm512_loadu_ps(row.shift + block)),
          other_shift_(_mm512_loadu_ps(row.shift + block + kLanes)), least_(_mm512_set1_ps(row.least)),
          most_(_mm512_set1_ps(row.most)) {}

    // The next pixel.
    GOLDSTICK_AVX512 GOLDSTICK_INLINE void operator()(const Two& sums) {
        const __m512 low = _mm512_mul_ps(_mm512_cvtepi32_ps(sums.low), by_);
        const __m512 high = _mm512_mul_ps(_mm512_cvtepi32_ps(sums.high), other_by_);
        const __m512 one = within(_mm512_add_ps(low, shift_)), other = within(_mm512_add_ps(high, other_shift_));
        if (past_caches_) {
            _mm512_stream_ps(y_, one);
            _mm512_stream_ps(y_ + kLanes, other);
        } else if (whole_) {  // stores with masks take longer
            _mm512_storeu_ps(y_, one);
            _mm512_storeu_ps(y_ + kLanes, other);
        } else {
            _mm512_mask_storeu_ps(y_, first_, one);
            _mm512_mask_storeu_ps(y_ + kLanes, second_, other);
        }
        y_ += channels_;
    }

private:
    // What is no number, given last, stays.
    GOLDSTICK_AVX512 GOLDSTICK_INLINE __m512 within(__m512 y) const {
        return _mm512_min_ps(most_, _mm512_max_ps(least_, y));
    }

    float* y_;
    std::int64_t channels_;
    bool whole_, past_caches_;
    __mmask16 first_, second_;
    __m512 by_, other_by_, shift_, other_shift_, least_, most_;
};

// A block of channels of all pixels of a row.
GOLDSTICK_AVX512 void multiply_block(const ConvolutionShape& shape, const OutputRow& row, std::int64_t block) {
    const std::int64_t positions = shape.positions(), slots = row.slots, tap_slots = row.tap_slots;
    const std::int16_t* from[kDepthwisePositions + 1];
    for (std::int64_t position = 0; position < positions; ++position) {
        const std::int64_t j = position % shape.kernel_columns * shape.dilation_columns;
        from[position] = row.rows[position / shape.kernel_columns] + j * slots + block;
    }
    from[positions] = from[positions - 1];  // its tap is 0 where there is none
    Finish finish(row, block);
    const std::int64_t step = shape.stride_columns * slots;
    for (std::int64_t at = 0, end = row.columns * step; at < end; at += step) {
        const std::int16_t* taps = row.taps + 2 * block;
        Two sums{_mm512_setzero_si512(), _mm512_setzero_si512()};
        for (std::int64_t position = 0; position < positions; position += 2, taps += 2 * tap_slots) {
            add(sums, interleaved_at(from[position] + at, from[position + 1] + at),
                {codes_at(taps), codes_at(taps + kBlock)});
        }
        finish(sums);
    }
}

// Two taps of each lane: the first of `one` and the second of `other`; the second of `one` and the first of `other`.
GOLDSTICK_AVX512 inline __m512i first_and_second(__m512i one, __m512i other) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, one, other);
}
GOLDSTICK_AVX512 inline __m512i second_and_first(__m512i one, __m512i other) {
    return _mm512_or_si512(_mm512_maskz_srli_epi32(0xffff, one, 16), _mm512_maskz_slli_epi32(0xffff, other, 16));
}

// The taps of a kernel of three by three: two rows of each column, then the third row's columns 0 and 1, then 2 alone.
GOLDSTICK_AVX512 inline void taps_by_rows(const OutputRow& row, std::int64_t block, Two (&taps)[5]) {
    Two given[5];  // two positions as they follow each other
    for (int i = 0; i < 5; ++i) {
        const std::int16_t* const from = row.taps + 2 * (i * row.tap_slots + block);
        given[i] = {codes_at(from), codes_at(from + kBlock)};
    }
    taps[0] = {first_and_second(given[0].low, given[1].low), first_and_second(given[0].high, given[1].high)};
    taps[1] = {second_and_first(given[0].low, given[2].low), second_and_first(given[0].high, given[2].high)};
    taps[2] = {first_and_second(given[1].low, given[2].low), first_and_second(given[1].high, given[2].high)};
    taps[3] = given[3];
    taps[4] = given[4];
}

// multiply_block() of kernels of three by three: codes of two rows are interleaved once for all columns of the kernel.
template <int stride>
GOLDSTICK_AVX512 void multiply_three(const OutputRow& row, std::int64_t block) {
    const std::int64_t slots = row.slots;
    const std::int16_t *first = row.rows[0] + block, *second = row.rows[1] + block, *third = row.rows[2] + block;
    Two taps[5];
    taps_by_rows(row, block, taps);
    Finish finish(row, block);
    Two before = interleaved_at(first, second), middle = interleaved_at(first + slots, second + slots);
    Two pair = interleaved_at(third, third + slots), pair_between = interleaved_at(third + slots, third + 2 * slots);
    __m512i next = codes_at(third + 2 * slots);
#pragma GCC unroll 2
    for (std::int64_t column = 0, columns = row.columns; column < columns; ++column) {
        const Two after = interleaved_at(first + 2 * slots, second + 2 * slots);
        const __m512i beyond = codes_at(third + 3 * slots);  // its tap is 0
        const Two last = interleaved(next, beyond);
        Two sums{_mm512_setzero_si512(), _mm512_setzero_si512()};
        add(sums, before, taps[0]);
        add(sums, middle, taps[1]);
        add(sums, after, taps[2]);
        add(sums, pair, taps[3]);
        add(sums, last, taps[4]);
        finish(sums);
        if constexpr (stride == 1) {
            before = middle, middle = after;
            pair = pair_between, pair_between = last, next = beyond;
        } else if (column + 1 < columns) {
            before = after, middle = interleaved_at(first + 3 * slots, second + 3 * slots);
            pair = last, next = codes_at(third + 4 * slots);
        }
        first += stride * slots, second += stride * slots, third += stride * slots;
    }
}

GOLDSTICK_AVX512 void multiply(const ConvolutionShape& shape, const OutputRow& row) {
    const bool three = shape.kernel_rows == 3 && shape.kernel_columns == 3 && shape.dilation_columns == 1;
    for (std::int64_t block = 0; block < row.channels; block += kBlock) {
        if (three && shape.stride_columns == 1) {
            multiply_three<1>(row, block);
        } else if (three && shape.stride_columns == 2) {
            multiply_three<2>(row, block);
        } else {
            multiply_block(shape, row, block);
        }
    }
}

}  // namespace

const RowKernels kRowsAvx512{kLanes, lay, lay_bytes, multiply};

}  // namespace goldstick

#endif
