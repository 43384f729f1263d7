// A few tokens: most of the time is that of reading the weight, so codes are used as they are unpacked. Two to
// eight rows go side by side, and while they are read, the memory after them is called for.
#include <cstring>

#include "base/inline.hpp"
#include "linear/closing_avx2.hpp"
#include "linear/codes_avx2.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace goldstick {
namespace {

constexpr std::int64_t kAhead = 8192;  // bytes between what is read and what is called for, at least

// What goes side by side: some tokens with as many rows as leave their sums in registers.
//
// A block of 32 bytes fills a vector. Two rows' blocks of 16 bytes share one, or four rows' of 8, and so do their sums.
template <Shape shape, int tokens>
struct Tile {
    static constexpr bool halves = lanes_of(shape) == 4, quarters = shape == Shape::kQuarterNibbles;
    static constexpr int rows = halves || quarters ? 8 : 8 / tokens;
    static constexpr int vectors = quarters ? rows / 4 : halves ? rows / 2 : rows;  // of codes, and of sums for each token
    static constexpr int results = tokens * rows / 8;         // vectors of eight sums: each of one token, or one of all
    static constexpr int shifts = in_nibbles(shape) ? 4 : 2, width = in_nibbles(shape) ? 4 : 8;
    static constexpr std::int64_t bytes = quarters ? 8 : halves ? 16 : 32, step = bytes * 8 / width;

    // Block `i` of those that begin `stride` bytes apart, or block `i` and the one half of all rows further on; or two
    // neighbours and the two half of all rows further on.
    GOLDSTICK_AVX2 static __m256i load(const std::uint8_t* from, std::int64_t stride, int i) {
        if constexpr (quarters) {
            __m128i pairs[2];
            GOLDSTICK_UNROLL
            for (int k = 0; k < 2; ++k) {
                const std::uint8_t* const pair = from + (2 * i + 4 * k) * stride;
                pairs[k] = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(pair)),
                                              _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pair + stride)));
            }
            return _mm256_set_m128i(pairs[1], pairs[0]);
        } else if constexpr (halves) {
            const auto* low = reinterpret_cast<const __m128i*>(from + i * stride);
            const auto* high = reinterpret_cast<const __m128i*>(from + (i + vectors) * stride);
            return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
        } else {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * stride));
        }
    }

    // The activations that belong to codes shifted by `j`.
    GOLDSTICK_AVX2 static __m256i activations(const std::int16_t* q, int j) {
        if constexpr (quarters) {
            std::int64_t bits;
            std::memcpy(&bits, q + j * 4, sizeof bits);
            return _mm256_set1_epi64x(bits);
        } else if constexpr (halves) {
            return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + j * 8)));
        } else {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + j * 16));
        }
    }

    // A value of each row, for the lanes of a result.
    GOLDSTICK_AVX2 static __m256 by_row(const float* from) {
        if constexpr (rows == 8) {
            return _mm256_loadu_ps(from);
        } else if constexpr (rows == 4) {
            return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(from));
        } else {
            return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(from)));
        }
    }

    // The bits of a value of each token, for the lanes of result `i`.
    template <typename Value>
    GOLDSTICK_AVX2 static __m256i by_token(const Value* from, int i) {
        if constexpr (results == tokens) {
            std::int32_t bits;
            std::memcpy(&bits, from + i, sizeof bits);
            return _mm256_set1_epi32(bits);
        } else if constexpr (tokens == 2) {
            const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
            return _mm256_set_m128i(_mm_shuffle_epi32(two, 0x55), _mm_shuffle_epi32(two, 0));
        } else {
            const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
            return _mm256_set_m128i(_mm_unpackhi_epi32(four, four), _mm_unpacklo_epi32(four, four));
        }
    }

    // Write result `i` to the sums, [tokens][kRows].
    GOLDSTICK_AVX2 static void store(__m256 total, int i, float* sums) {
        float lanes[8];
        _mm256_storeu_ps(lanes, total);
        for (int lane = 0; lane < 8; ++lane) {
            sums[(i + lane / rows) * kRows + lane % rows] = lanes[lane];
        }
    }
};

// The sums of both halves of four vectors: of the lower ones, then of the upper.
GOLDSTICK_AVX2 inline __m256i add_lanes(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

// The lower half of a result: both halves of `a`; its upper half: both of `b`.
GOLDSTICK_AVX2 inline __m256i add_halves(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_blend_epi32(a, b, 0xf0), _mm256_permute2x128_si256(a, b, 0x21));
}

// Eight sums in the order of their lanes. Four, two, or one lie in each of `v`.
template <typename T>
GOLDSTICK_AVX2 inline __m256i eight_sums(const __m256i* v) {
    if constexpr (T::quarters) {
        return _mm256_hadd_epi32(v[0], v[1]);
    } else if constexpr (T::halves) {
        return add_lanes(v[0], v[1], v[2], v[3]);
    } else {
        return add_lanes(add_halves(v[0], v[4]), add_halves(v[1], v[5]), add_halves(v[2], v[6]), add_halves(v[3], v[7]));
    }
}

// Add the products of a block of each row, which begin at `bytes` and `stride` bytes apart.
template <Shape shape, bool table, int tokens>
GOLDSTICK_AVX2 inline void multiply_block(const Codes<shape, false, table>& coding, const std::uint8_t* bytes,
                                          std::int64_t stride, const std::int16_t* q, std::int64_t q_stride,
                                          __m256i* product) {
    using T = Tile<shape, tokens>;
    GOLDSTICK_UNROLL
    for (int i = 0; i < T::vectors; ++i) {
        const auto words = coding.words(T::load(bytes, stride, i));
        GOLDSTICK_UNROLL
        for (int j = 0; j < T::shifts; ++j) {
            const __m256i codes = coding.shifted(words, j);
            GOLDSTICK_UNROLL
            for (int t = 0; t < tokens; ++t) {
                const __m256i values = T::activations(q + t * q_stride, j);
                __m256i& sum = product[t * T::vectors + i];
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes, values));
            }
        }
    }
}

// Sums of a tile, of the tokens from `begin` and the rows from `first` on.
template <Shape shape, bool table, int tokens>
GOLDSTICK_AVX2 void multiply_tile(const Columns& columns, const RowBlock& block, const Activations& activations,
                                  std::int64_t begin, std::int64_t first, float* sums) {
    using T = Tile<shape, tokens>;
    constexpr int vectors = tokens * T::vectors;
    const Codes<shape, false, table> coding(columns);
    const std::uint8_t* const* rows = block.rows + first;
    const std::int64_t stride = columns.row_bytes, all = activations.tokens;
    const bool apart = rows[T::rows - 1] == rows[0] + (T::rows - 1) * stride;
    const std::uint8_t* ahead = rows[0] + std::max(kAhead, T::rows * stride);
    __m256i product[vectors]{};
    __m256 total[T::results];
    GOLDSTICK_UNROLL
    for (int i = 0; i < T::results; ++i) {
        total[i] = _mm256_setzero_ps();
    }
    const float* scale = activations.scale + begin;
    const std::int32_t* shift = activations.shift + begin;
    const std::int32_t* const codes = activations.codes;
    const Chunk* const end = columns.chunks.data() + columns.chunks.size();
    for (const Chunk* chunk = columns.chunks.data(); chunk < end; ++chunk, scale += all, shift += all) {
        if (chunk->opens) {
            GOLDSTICK_UNROLL
            for (int i = 0; i < vectors; ++i) {
                product[i] = _mm256_setzero_si256();
            }
        }
        const auto* q = reinterpret_cast<const std::int16_t*>(codes + chunk->offset * all + begin * chunk->steps);
        const std::uint8_t* bytes = rows[0] + chunk->begin * columns.bits / 8;
        const std::int64_t whole = apart ? chunk->whole : 0, padded = chunk->padded;
        for (std::int64_t at = 0; at < whole; ++at, bytes += T::bytes, q += T::step, ahead += T::rows * T::bytes) {
            GOLDSTICK_UNROLL
            for (int line = 0; line < T::rows * T::bytes; line += 64) {
                _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
            }
            multiply_block<shape, table, tokens>(coding, bytes, stride, q, padded, product);
        }
        for (std::int64_t at = whole; at < padded / T::step; ++at, q += T::step) {
            std::uint8_t copies[T::rows * kBlockBytes];
            for (int r = 0; r < T::rows; ++r) {
                copy_block(columns, *chunk, rows[r], at, copies + r * kBlockBytes);
            }
            multiply_block<shape, table, tokens>(coding, copies, kBlockBytes, q, padded, product);
        }
        if (chunk->closes) {
            const std::int64_t group = chunk->group * kRows + first;
            const Steps8 steps{T::by_row(block.scale + group),
                               block.zero ? T::by_row(block.zero + group) : _mm256_setzero_ps(), block.zero != nullptr,
                               block.minimums};
            GOLDSTICK_UNROLL
            for (int i = 0; i < T::results; ++i) {
                const __m256i dot = eight_sums<T>(product + i * vectors / T::results);
                const __m256 token_scale = _mm256_castsi256_ps(T::by_token(scale, i));
                total[i] = _mm256_add_ps(total[i], closed(dot, steps, T::by_token(shift, i), token_scale));
            }
        }
    }
    GOLDSTICK_UNROLL
    for (int i = 0; i < T::results; ++i) {
        T::store(total[i], i, sums + first);
    }
}

template <Shape shape, bool table, int tokens>
void multiply_rows(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
                   float* sums) {
    for (std::int64_t first = 0; first < kRows; first += Tile<shape, tokens>::rows) {
        multiply_tile<shape, table, tokens>(columns, block, activations, begin, first, sums);
    }
}

template <Shape shape, bool table>
void multiply(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
              std::int64_t end, float* sums) {
    constexpr int most = shape == Shape::kBytes ? 4 : 2;
    for (std::int64_t tokens; begin < end; begin += tokens, sums += tokens * kRows) {
        tokens = end - begin >= most ? most : end - begin >= 2 ? 2 : 1;
        const auto run = tokens == most ? multiply_rows<shape, table, most>
                         : tokens == 2  ? multiply_rows<shape, table, 2>
                                        : multiply_rows<shape, table, 1>;
        run(columns, block, activations, begin, sums);
    }
}

}  // namespace

void block_dot_avx2(const Columns& columns, const RowBlock* block, const Activations& activations, std::int64_t begin,
                    std::int64_t end, float* sums) {
    const auto run = for_shape(columns, [](auto shape, auto table) {
        return multiply<decltype(shape)::value, decltype(table)::value>;
    });
    run(columns, *block, activations, begin, end, sums);
}

}  // namespace goldstick

#endif
