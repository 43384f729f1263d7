// Cuts the columns, shares rows and tokens out among threads, and writes the results.
#include "linear.hpp"

#include <new>
#if defined(__SSE2__)
#include <emmintrin.h>
#include <xmmintrin.h>
#endif

#include "dequantize.hpp"

namespace goldstick {

namespace {

constexpr std::int64_t kSpan16 = 128;    // 128 products of 8 and 16 bits, and half of what 32 bits hold
constexpr std::int64_t kSpan8 = 32768;   // as many products of 8 and 9 bits
// Up to so many tokens, unpacking for one use costs less than unpacking for more; of bytes, unpacking is cheaper.
constexpr std::int64_t kDotTokens = 2, kDotTokensOfBytes = 4;

constexpr std::int64_t kQuantizedAlone = 16, kNeighbours = 64;
constexpr std::int64_t kTokens16 = 192;  // most tokens at once: their 16-bit activations fill twice as much
constexpr std::int64_t kItems = 4, kLeast = 16;  // items for each thread, and tiles of a part
constexpr std::int64_t kExcessShare = 4;  // with more than one excess in so many steps, 16 bits are faster

// Uninitialized memory for a call, on cache lines.
template <typename Value>
class Buffer {
public:
    explicit Buffer(std::int64_t count)
        : data_(static_cast<Value*>(::operator new(sizeof(Value) * static_cast<std::size_t>(count), kLine))) {}
    ~Buffer() { ::operator delete(data_, kLine); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Value* data() const { return data_; }

private:
    static constexpr std::align_val_t kLine{64};
    Value* data_;
};

#if defined(__SSE2__)
inline __m128 load_four(const float* from) { return _mm_loadu_ps(from); }

inline __m128 load_four(const bfloat16* from) {
    const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
}

// Four rows of four, which are `stride` apart, as columns. Returns how many of `groups` it took, four by four.
template <typename T>
std::int64_t transpose_fours(const T* from, std::int64_t stride, std::int64_t groups, float* to) {
    std::int64_t g = 0;
    for (; g + 4 <= groups; g += 4) {
        __m128 a = load_four(from + g), b = load_four(from + stride + g);
        __m128 c = load_four(from + 2 * stride + g), d = load_four(from + 3 * stride + g);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(to + g * kRows, a);
        _mm_storeu_ps(to + (g + 1) * kRows, b);
        _mm_storeu_ps(to + (g + 2) * kRows, c);
        _mm_storeu_ps(to + (g + 3) * kRows, d);
    }
    return g;
}
#else
template <typename T>
std::int64_t transpose_fours(const T*, std::int64_t, std::int64_t, float*) {
    return 0;
}
#endif

// The rows `first` and following of [rows, groups] as float [groups][kRows]. The last row is repeated.
template <typename T>
void gather_rows(const T* from, std::int64_t rows, std::int64_t groups, std::int64_t first, float* to) {
    for (std::int64_t r = 0; r < kRows; r += 4) {
        const std::int64_t row = first + r;
        std::int64_t g = row + 4 <= rows ? transpose_fours(from + row * groups, groups, groups, to + r) : 0;
        for (; g < groups; ++g) {
            for (std::int64_t i = 0; i < 4; ++i) {
                to[g * kRows + r + i] = to_float(from[std::min(row + i, rows - 1) * groups + g]);
            }
        }
    }
}

// Codes, scales and zeros of the rows from `first` on.
template <typename T>
RowBlock gather_block(const LinearCall<T>& call, std::int64_t first, float* scale, float* zero) {
    RowBlock block{};
    for (std::int64_t r = 0; r < kRows; ++r) {
        block.rows[r] = call.packed + std::min(first + r, call.rows - 1) * call.row_bytes;
    }
    gather_rows(call.scale, call.rows, call.groups, first, scale);
    block.scale = scale;
    if (call.zero) {
        gather_rows(call.zero, call.rows, call.groups, first, zero);
        for (std::int64_t i = 0; sizeof(T) == 2 && i < call.groups * kRows; ++i) {
            zero[i] = round_to<T>(zero[i]);
        }
        block.zero = zero;
    }
    return block;
}

template <typename T>
void write_block(const LinearCall<T>& call, const float* sums, std::int64_t first, std::int64_t begin,
                 std::int64_t end) {
    const std::int64_t count = std::min(kRows, call.rows - first);
    for (std::int64_t token = begin; token < end; ++token) {
        const float* sum = sums + (token - begin) * kRows;
        T* y = call.y + token * call.rows + first;
        for (std::int64_t r = 0; r < count; ++r) {
            const float value = call.bias ? sum[r] + to_float(call.bias[first + r]) : sum[r];
            store(y + r, round_to<T>(value));
        }
    }
}

}  // namespace

Columns::Columns(std::int64_t columns, std::int64_t group_size, int bits, std::int64_t row_bytes, Rounding rounding,
                 bool in_bytes, bool use_avx2)
    : bits(bits), row_bytes(row_bytes), in_bytes(in_bytes), deposit(use_avx2 && can_deposit()), steps(0) {
    const bool in_nibbles = bits == 4 && (group_size % 2 == 0 || group_size >= columns);  // groups begin with a byte
    shape = !in_nibbles ? Shape::kBytes : group_size <= 32 ? Shape::kHalfNibbles : Shape::kNibbles;
    direct = in_nibbles || bits == 8;
    const std::int64_t longest = rounding == Rounding::kInt16 ? kSpan16 : kSpan8;
    const std::int64_t chunk_size = rounding == Rounding::kInt16 ? kSpan16 : kChunk;
    chunks.reserve(static_cast<std::size_t>(columns / std::min(chunk_size, group_size) + 1));
    for (std::int64_t start = 0; start < columns; start += group_size) {
        const std::int64_t stop = std::min(start + group_size, columns);
        for (std::int64_t begin = start; begin < stop; begin += chunk_size) {
            const std::int64_t end = std::min(begin + chunk_size, stop);
            const std::int64_t width = (end - begin + block_codes() - 1) / block_codes() * block_codes();
            const std::int64_t there = (row_bytes - begin * bits / 8) / block_bytes();
            const std::int64_t whole = direct ? std::min(there, width / block_codes()) : 0;
            chunks.push_back({begin, end, start / group_size, steps, width, width / step_codes(), whole,
                              (begin - start) % longest == 0, end == stop || (end - start) % longest == 0});
            steps += width / step_codes();
        }
    }
}

namespace {

// Whether the activations were such as could be multiplied in this way.
template <typename T>
bool multiply(const LinearCall<T>& call, int threads, bool use_avx2, bool few, bool in_bytes) {
    const Columns columns(call.columns, call.group_size, call.bits, call.row_bytes, call.rounding, in_bytes, use_avx2);
    const auto parts = static_cast<std::int64_t>(columns.chunks.size()) * call.tokens;
    const bool may_exceed = in_bytes && call.bits == 8;
    const std::int64_t tile = few ? 1 : kTile, tiles = (call.tokens + tile - 1) / tile;
    const Buffer<std::int32_t> codes(columns.steps * call.tokens), sum(parts), excesses(may_exceed ? parts : 0);
    const Buffer<Excess> excess(may_exceed ? columns.steps * tiles : 0);
    const Buffer<float> activation_scale(parts);
    const Activations activations{
        codes.data(), activation_scale.data(), sum.data(), excess.data(), may_exceed ? excesses.data() : nullptr,
        call.tokens,  tile};
    std::int64_t exceeding = 0;
    // One thread alone is done with few tokens before another is there.
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : exceeding) \
    if (threads > 1 && call.tokens > kQuantizedAlone)
    for (std::int64_t first = 0; first < call.tokens; first += tile) {
        for (std::int64_t token = first; token < std::min(first + tile, call.tokens); ++token) {
            quantize_token(call, columns, activations, token, use_avx2);
        }
        exceeding += may_exceed ? put_excess_by(columns, activations, first) : 0;
    }
    if (exceeding > columns.steps * tiles / kExcessShare) {
        return false;
    }
    BlockKernel* const run = !use_avx2 ? block_scalar : few ? block_dot_avx2 : block_panel_avx2;
    const std::int64_t blocks = (call.rows + kRows - 1) / kRows;
    // As few parts of the tokens as there may be, since each unpacks the weight again, but some work for every thread.
    const std::int64_t most = (in_bytes ? kTokens : kTokens16) / tile;
    const std::int64_t shared = kItems * threads / std::max<std::int64_t>(blocks, 1);
    const std::int64_t fewest = std::min<std::int64_t>(shared, tiles / kLeast);
    const std::int64_t wanted = std::max<std::int64_t>({(tiles + most - 1) / most, fewest, 1});
    const std::int64_t at_most = std::max<std::int64_t>((tiles + wanted - 1) / wanted, 1) * tile;  // tokens of a part
    const std::int64_t items = blocks * ((call.tokens + at_most - 1) / at_most);
    const int at_once = few ? 8 : call.tokens <= kNeighbours ? 4 : 1;  // few tokens: neighbours, which are read ahead
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const Buffer<float> scale(call.groups * kRows), zero(call.zero ? call.groups * kRows : 0);
        const Buffer<float> sums(at_most * kRows);
#pragma omp for schedule(dynamic, at_once) nowait
        for (std::int64_t item = 0; item < items; ++item) {
            const std::int64_t first = item % blocks * kRows, begin = item / blocks * at_most;
            const std::int64_t end = std::min(begin + at_most, call.tokens);
            const RowBlock block = gather_block(call, first, scale.data(), zero.data());
            run(columns, block, activations, begin, end, sums.data());
            write_block(call, sums.data(), first, begin, end);
        }
    }
    return true;
}

}  // namespace

template <typename T>
void quantized_linear(const LinearCall<T>& call, int threads, bool use_avx2) {
    const bool few = call.tokens <= (call.bits == 8 ? kDotTokensOfBytes : kDotTokens);
    const bool small = call.rounding != Rounding::kInt16 && call.input_zero == 0.0f;  // activations have 8 bits
    if (!multiply(call, threads, use_avx2, few, small && use_avx2 && !few)) {
        multiply(call, threads, use_avx2, few, false);
    }
}

template void quantized_linear<float>(const LinearCall<float>&, int, bool);
template void quantized_linear<bfloat16>(const LinearCall<bfloat16>&, int, bool);

}  // namespace goldstick
