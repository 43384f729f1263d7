// Eight codes at a time become eight floats; rows are shared out among threads.
#include "codes/float_codes.hpp"

#include <algorithm>
#include <cstring>

#include "base/inline.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace goldstick {
namespace {

constexpr int kLanes = 8;   // sums of a token, column i in sum i mod 8
constexpr int kTokens = 4;  // tokens that are multiplied while a row is read

unsigned code_of(const std::uint8_t* row, std::int64_t index, int bits) {
    const std::int64_t first = index * bits;
    const int shift = static_cast<int>(first & 7);
    unsigned code = row[first >> 3] >> shift;
    if (shift + bits > 8) {  // it goes on in the next byte, which the row therefore has
        code |= static_cast<unsigned>(row[(first >> 3) + 1]) << (8 - shift);
    }
    return code & ((1u << bits) - 1u);
}

// The eight codes from `column` on, a multiple of 8, as floats.
void widen_scalar(const FloatCodes& codes, const std::uint8_t* row, std::int64_t column, float* out) {
    for (int i = 0; i < kLanes; ++i) {
        out[i] = codes.table[code_of(row, column + i, codes.bits)];
    }
}

#if defined(__x86_64__)

// Which instructions widen codes.
enum class Widening { kNibbles, kE4m3, kTable };

template <Widening widening>
struct Wide {
    const FloatCodes& codes;
    __m256 low, high;

    GOLDSTICK_AVX2 explicit Wide(const FloatCodes& codes) : codes(codes) {
        low = high = _mm256_setzero_ps();
        if constexpr (widening == Widening::kNibbles) {
            low = _mm256_loadu_ps(codes.table);
            high = _mm256_loadu_ps(codes.table + 8);
        }
    }

    GOLDSTICK_AVX2 GOLDSTICK_INLINE __m256 eight(const std::uint8_t* row, std::int64_t column) const {
        if constexpr (widening == Widening::kNibbles) {
            std::int32_t word;
            std::memcpy(&word, row + column / 2, sizeof word);
            const __m256i spread = _mm256_srlv_epi32(_mm256_set1_epi32(word),
                                                     _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
            // Three bits choose among eight, the fourth, as a sign, between both eights.
            return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, spread), _mm256_permutevar8x32_ps(high, spread),
                                    _mm256_castsi256_ps(_mm256_slli_epi32(spread, 28)));
        } else if constexpr (widening == Widening::kE4m3) {
            // The bits of a half with the same exponent field, whose bias is larger by 8: an eighth of eight binades.
            const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + column));
            const __m128i halves = _mm_srai_epi16(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes), 1);
            const __m256 floats = _mm256_cvtph_ps(_mm_and_si128(halves, _mm_set1_epi16(static_cast<short>(0xbfff))));
            return _mm256_mul_ps(floats, _mm256_set1_ps(256.0f));
        } else {
            std::uint32_t spread[kLanes];
            for (int i = 0; i < kLanes; ++i) spread[i] = code_of(row, column + i, codes.bits);
            const __m256i indices = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(spread));
            return _mm256_i32gather_ps(codes.table, indices, 4);
        }
    }
};

GOLDSTICK_AVX2 inline void write(float* out, __m256 values) { _mm256_storeu_ps(out, values); }

template <typename T>
GOLDSTICK_AVX2 inline void write(T* out, __m256 values) {
    float floats[kLanes];
    _mm256_storeu_ps(floats, values);
    for (int i = 0; i < kLanes; ++i) store(out + i, round_to<T>(floats[i]));
}

template <Widening widening, typename T>
GOLDSTICK_AVX2 void dequantize_octets(const FloatCodes& codes, const std::uint8_t* row, std::int64_t begin,
                                      std::int64_t end, float step, T* out) {
    const Wide<widening> wide(codes);
    const __m256 steps = _mm256_set1_ps(step);
    for (std::int64_t i = begin; i < end; i += kLanes) {
        write(out + i, _mm256_mul_ps(wide.eight(row, i), steps));
    }
}

// Add the products of a group, lane by lane, for so many tokens; `sums` are [tokens][kLanes].
template <Widening widening, int tokens>
GOLDSTICK_AVX2 void multiply_octets(const FloatCodes& codes, const std::uint8_t* row, std::int64_t begin,
                                    std::int64_t end, float step, const float* x, float* sums) {
    const Wide<widening> wide(codes);
    __m256 partial[tokens];
    for (int t = 0; t < tokens; ++t) partial[t] = _mm256_setzero_ps();
    for (std::int64_t i = begin; i < end; i += kLanes) {
        const __m256 values = wide.eight(row, i);
        for (int t = 0; t < tokens; ++t) {
            partial[t] = _mm256_add_ps(partial[t], _mm256_mul_ps(values, _mm256_loadu_ps(x + t * codes.columns + i)));
        }
    }
    for (int t = 0; t < tokens; ++t) {
        const __m256 scaled = _mm256_mul_ps(partial[t], _mm256_set1_ps(step));
        _mm256_storeu_ps(sums + t * kLanes, _mm256_add_ps(_mm256_loadu_ps(sums + t * kLanes), scaled));
    }
}

template <Widening widening>
void multiply_octets(int tokens, const FloatCodes& codes, const std::uint8_t* row, std::int64_t begin, std::int64_t end,
                     float step, const float* x, float* sums) {
    switch (tokens) {
        case 1: return multiply_octets<widening, 1>(codes, row, begin, end, step, x, sums);
        case 2: return multiply_octets<widening, 2>(codes, row, begin, end, step, x, sums);
        case 3: return multiply_octets<widening, 3>(codes, row, begin, end, step, x, sums);
        default: return multiply_octets<widening, 4>(codes, row, begin, end, step, x, sums);
    }
}

Widening widening_of(const FloatCodes& codes) {
    return codes.bits == 4 ? Widening::kNibbles : codes.e4m3 ? Widening::kE4m3 : Widening::kTable;
}

#endif

// The part of a group that is worked on eight codes at a time: what lies between multiples of 8.
struct Octets {
    std::int64_t begin, end;
};

Octets octets_of(std::int64_t begin, std::int64_t end) {
    const std::int64_t first = (begin + kLanes - 1) / kLanes * kLanes, last = end / kLanes * kLanes;
    return {std::min(first, end), std::max(last, std::min(first, end))};
}

// The same sums without vectors.
void multiply_plain(const FloatCodes& codes, const std::uint8_t* row, const Octets& part, float step, const float* x,
                    int tokens, float* sums) {
    for (int t = 0; t < tokens; ++t) {
        float partial[kLanes] = {}, values[kLanes];
        for (std::int64_t i = part.begin; i < part.end; i += kLanes) {
            widen_scalar(codes, row, i, values);
            for (int lane = 0; lane < kLanes; ++lane) partial[lane] += values[lane] * x[t * codes.columns + i + lane];
        }
        for (int lane = 0; lane < kLanes; ++lane) sums[t * kLanes + lane] += partial[lane] * step;
    }
}

void multiply_row(const FloatCodes& codes, std::int64_t row, const float* x, int tokens, float* y, bool use_avx2) {
    const std::uint8_t* const stream = codes.packed + row * codes.row_bytes;
    float sums[kTokens * kLanes] = {}, rest[kTokens] = {};
    for (std::int64_t group = 0; group < codes.groups; ++group) {
        const std::int64_t begin = group * codes.group_size, end = std::min(begin + codes.group_size, codes.columns);
        const float step = codes.step[row * codes.groups + group];
        const Octets part = octets_of(begin, end);
#if defined(__x86_64__)
        if (use_avx2) {
            switch (widening_of(codes)) {
                case Widening::kNibbles:
                    multiply_octets<Widening::kNibbles>(tokens, codes, stream, part.begin, part.end, step, x, sums);
                    break;
                case Widening::kE4m3:
                    multiply_octets<Widening::kE4m3>(tokens, codes, stream, part.begin, part.end, step, x, sums);
                    break;
                default: multiply_octets<Widening::kTable>(tokens, codes, stream, part.begin, part.end, step, x, sums);
            }
        } else
#endif
        {
            multiply_plain(codes, stream, part, step, x, tokens, sums);
        }
        for (std::int64_t i = begin; i < end; ++i) {
            if (i == part.begin) i = part.end;
            if (i >= end) break;
            const float value = codes.table[code_of(stream, i, codes.bits)] * step;
            for (int t = 0; t < tokens; ++t) rest[t] += value * x[t * codes.columns + i];
        }
    }
    for (int t = 0; t < tokens; ++t) {
        const float* const s = sums + t * kLanes;
        const float total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        y[t * codes.rows + row] = total + rest[t];
    }
}

template <typename T>
void dequantize_row(const FloatCodes& codes, std::int64_t row, T* out, bool use_avx2) {
    const std::uint8_t* const stream = codes.packed + row * codes.row_bytes;
    for (std::int64_t group = 0; group < codes.groups; ++group) {
        const std::int64_t begin = group * codes.group_size, end = std::min(begin + codes.group_size, codes.columns);
        const float step = codes.step[row * codes.groups + group];
        Octets part = octets_of(begin, end);
#if defined(__x86_64__)
        if (use_avx2) {
            switch (widening_of(codes)) {
                case Widening::kNibbles:
                    dequantize_octets<Widening::kNibbles>(codes, stream, part.begin, part.end, step, out);
                    break;
                case Widening::kE4m3:
                    dequantize_octets<Widening::kE4m3>(codes, stream, part.begin, part.end, step, out);
                    break;
                default: dequantize_octets<Widening::kTable>(codes, stream, part.begin, part.end, step, out);
            }
        } else
#endif
        {
            part = {begin, begin};
        }
        for (std::int64_t i = begin; i < end; ++i) {
            if (i == part.begin) i = part.end;
            if (i >= end) break;
            store(out + i, round_to<T>(codes.table[code_of(stream, i, codes.bits)] * step));
        }
    }
}

}  // namespace

template <typename T>
void dequantize_float_codes(const FloatCodes& codes, T* out, int threads, bool use_avx2) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t row = 0; row < codes.rows; ++row) {
        dequantize_row(codes, row, out + row * codes.columns, use_avx2);
    }
}

void multiply_float_codes(const FloatCodes& codes, const float* x, std::int64_t tokens, float* y, int threads,
                          bool use_avx2) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t row = 0; row < codes.rows; ++row) {
        for (std::int64_t first = 0; first < tokens; first += kTokens) {
            const int count = static_cast<int>(std::min<std::int64_t>(kTokens, tokens - first));
            multiply_row(codes, row, x + first * codes.columns, count, y + first * codes.rows, use_avx2);
        }
    }
}

template void dequantize_float_codes<float>(const FloatCodes&, float*, int, bool);
template void dequantize_float_codes<bfloat16>(const FloatCodes&, bfloat16*, int, bool);
template void dequantize_float_codes<float16>(const FloatCodes&, float16*, int, bool);

}  // namespace goldstick
