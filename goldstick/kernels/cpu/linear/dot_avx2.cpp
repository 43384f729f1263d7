// A few tokens: most of the time is that of reading the weight, so codes are used as they are unpacked. Two to
// eight rows go side by side, and while they are read, the memory after them is called for.
#include <cstring>

#include "base/inline.hpp"
#include "linear/linear.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#define GOLDSTICK_UNROLL _Pragma("GCC unroll 8")  // whole: sums in an array stay in registers only then

namespace goldstick {
namespace {

constexpr std::int64_t kAhead = 8192;  // bytes between what is read and what is called for, at least

// What goes side by side: some tokens with as many rows as leave their sums in registers.
//
// A block of 32 bytes fills a vector. Two rows' blocks of 16 bytes share one, and so do their sums.
template <Shape shape, int tokens>
struct Tile {
    static constexpr bool halves = shape == Shape::kHalfNibbles;
    static constexpr int rows = halves ? 8 : 8 / tokens;
    static constexpr int vectors = halves ? rows / 2 : rows;  // of codes, and of sums for each token
    static constexpr int results = tokens * rows / 8;         // vectors of eight sums: each of one token, or one of all
    static constexpr int shifts = shape == Shape::kBytes ? 2 : 4, width = shape == Shape::kBytes ? 8 : 4;
    static constexpr std::int64_t bytes = halves ? 16 : 32, step = bytes * 8 / width;

    // Block `i` of those that begin `stride` bytes apart, or block `i` and the one half of all rows further on.
    GOLDSTICK_AVX2 static __m256i load(const std::uint8_t* from, std::int64_t stride, int i) {
        if constexpr (halves) {
            const auto* low = reinterpret_cast<const __m128i*>(from + i * stride);
            const auto* high = reinterpret_cast<const __m128i*>(from + (i + vectors) * stride);
            return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
        } else {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * stride));
        }
    }

    // The activations that belong to codes shifted by `j`.
    GOLDSTICK_AVX2 static __m256i activations(const std::int16_t* q, int j) {
        if constexpr (halves) {
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

// Eight sums in the order of their lanes. Two, or one, lie in each of `v`.
template <bool halves>
GOLDSTICK_AVX2 inline __m256i eight_sums(const __m256i* v) {
    if constexpr (halves) {
        return add_lanes(v[0], v[1], v[2], v[3]);
    } else {
        return add_lanes(add_halves(v[0], v[4]), add_halves(v[1], v[5]), add_halves(v[2], v[6]), add_halves(v[3], v[7]));
    }
}

// Add the products of a block of each row, which begin at `bytes` and `stride` bytes apart.
template <Shape shape, int tokens>
GOLDSTICK_AVX2 inline void multiply_block(const std::uint8_t* bytes, std::int64_t stride, const std::int16_t* q,
                                          std::int64_t q_stride, __m256i* product) {
    using T = Tile<shape, tokens>;
    const __m256i mask = _mm256_set1_epi16((1 << T::width) - 1);
    GOLDSTICK_UNROLL
    for (int i = 0; i < T::vectors; ++i) {
        const __m256i packed = T::load(bytes, stride, i);
        GOLDSTICK_UNROLL
        for (int j = 0; j < T::shifts; ++j) {
            const __m256i shifted = _mm256_srli_epi16(packed, j * T::width);
            const __m256i codes = j == T::shifts - 1 ? shifted : _mm256_and_si256(shifted, mask);
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
template <Shape shape, int tokens>
GOLDSTICK_AVX2 void multiply_tile(const Columns& columns, const RowBlock& block, const Activations& activations,
                                  std::int64_t begin, std::int64_t first, float* sums) {
    using T = Tile<shape, tokens>;
    constexpr int vectors = tokens * T::vectors;
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
            multiply_block<shape, tokens>(bytes, stride, q, padded, product);
        }
        for (std::int64_t at = whole; at < padded / T::step; ++at, q += T::step) {
            std::uint8_t copies[T::rows * kBlockBytes];
            for (int r = 0; r < T::rows; ++r) {
                copy_block(columns, *chunk, rows[r], at, copies + r * kBlockBytes);
            }
            multiply_block<shape, tokens>(copies, kBlockBytes, q, padded, product);
        }
        if (chunk->closes) {
            const std::int64_t group = chunk->group * kRows + first;
            const __m256 weight_scale = T::by_row(block.scale + group);
            GOLDSTICK_UNROLL
            for (int i = 0; i < T::results; ++i) {
                const __m256i dot = eight_sums<T::halves>(product + i * vectors / T::results);
                const __m256i token_shift = T::by_token(shift, i);
                __m256 centred;
                if (block.zero) {
                    const __m256 zero = T::by_row(block.zero + group);
                    const __m256 shifted = _mm256_mul_ps(zero, _mm256_cvtepi32_ps(token_shift));
                    centred = _mm256_sub_ps(_mm256_cvtepi32_ps(dot), shifted);
                } else {
                    centred = _mm256_cvtepi32_ps(_mm256_add_epi32(dot, token_shift));
                }
                const __m256 factor = _mm256_mul_ps(weight_scale, _mm256_castsi256_ps(T::by_token(scale, i)));
                total[i] = _mm256_add_ps(total[i], _mm256_mul_ps(centred, factor));
            }
        }
    }
    GOLDSTICK_UNROLL
    for (int i = 0; i < T::results; ++i) {
        T::store(total[i], i, sums + first);
    }
}

template <Shape shape, int tokens>
void multiply_rows(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
                   float* sums) {
    for (std::int64_t first = 0; first < kRows; first += Tile<shape, tokens>::rows) {
        multiply_tile<shape, tokens>(columns, block, activations, begin, first, sums);
    }
}

template <Shape shape>
void multiply(const Columns& columns, const RowBlock& block, const Activations& activations, std::int64_t begin,
              std::int64_t end, float* sums) {
    constexpr int most = shape == Shape::kBytes ? 4 : 2;
    for (std::int64_t tokens; begin < end; begin += tokens, sums += tokens * kRows) {
        tokens = end - begin >= most ? most : end - begin >= 2 ? 2 : 1;
        const auto run = tokens == most ? multiply_rows<shape, most>
                         : tokens == 2  ? multiply_rows<shape, 2>
                                        : multiply_rows<shape, 1>;
        run(columns, block, activations, begin, sums);
    }
}

}  // namespace

void block_dot_avx2(const Columns& columns, const RowBlock* block, const Activations& activations, std::int64_t begin,
                    std::int64_t end, float* sums) {
    const auto run = columns.shape == Shape::kNibbles       ? multiply<Shape::kNibbles>
                     : columns.shape == Shape::kHalfNibbles ? multiply<Shape::kHalfNibbles>
                                                            : multiply<Shape::kBytes>;
    run(columns, *block, activations, begin, end, sums);
}

}  // namespace goldstick

#endif
