// Rows of depthwise convolutions with AVX2: 16 channels side by side, two taps at a time.
#include "convolution/depthwise_rows.hpp"
#include "convolution/finish_avx2.hpp"

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

GOLDSTICK_AVX2 inline __m256i at(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// What eight sums become: the channels from `first` on.
GOLDSTICK_AVX2 inline __m256 finished(__m256i sums, const OutputRow& row, std::int64_t first) {
    return WideFinish({row.by, row.shift, row.least, row.most}, first)(_mm256_cvtepi32_ps(sums));
}

// A block of channels of all pixels of a row. With `count` positions known, nothing is left of the loop over them.
template <int count>
GOLDSTICK_AVX2 void multiply_block(const ConvolutionShape& shape, const OutputRow& row, std::int64_t first) {
    const std::int64_t positions = count ? count : shape.positions(), pairs = (positions + 1) / 2;
    const std::int64_t channels = std::min(row.channels - first, kBlock), all = row.channels, tap_slots = row.tap_slots;
    const std::int16_t* const taps = row.taps + 2 * first;
    const std::int16_t* from[count ? count + 1 : kDepthwisePositions + 1];
    for (std::int64_t position = 0; position < positions; ++position) {
        const std::int64_t j = position % shape.kernel_columns * shape.dilation_columns;
        from[position] = row.rows[position / shape.kernel_columns] + j * row.slots + first;
    }
    from[positions] = from[positions - 1];  // its tap is 0 where there is none
    float* y = row.y + first;
    const std::int64_t step = shape.stride_columns * row.slots;
    for (std::int64_t column = 0, end = row.columns * step; column < end; column += step, y += all) {
        __m256i low = _mm256_setzero_si256(), high = low;
#pragma GCC unroll 5
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
            const __m256i one = at(from[2 * pair] + column), other = at(from[2 * pair + 1] + column);
            const std::int16_t* const both = taps + 2 * pair * tap_slots;
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(one, other), at(both)));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(one, other), at(both + kBlock)));
        }
        const __m256 one = finished(low, row, first), other = finished(high, row, first + kLanes);
        if (channels == kBlock) {
            _mm256_storeu_ps(y, one);
            _mm256_storeu_ps(y + kLanes, other);
        } else {
            alignas(32) float few[kBlock];
            _mm256_store_ps(few, one);
            _mm256_store_ps(few + kLanes, other);
            std::copy_n(few, channels, y);
        }
    }
}

void multiply(const ConvolutionShape& shape, const OutputRow& row) {
    for (std::int64_t first = 0; first < row.channels; first += kBlock) {
        (shape.positions() == 9 ? multiply_block<9> : multiply_block<0>)(shape, row, first);
    }
}

}  // namespace

const RowKernels kRowsAvx2{kLanes, lay, multiply};

}  // namespace goldstick

#endif
