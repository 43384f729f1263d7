// Cuts the columns, shares rows and tokens out among threads, and writes the results.
#include "linear.hpp"

#include "buffer.hpp"
#include "dequantize.hpp"
#include "gather.hpp"
#include "interleaved.hpp"

namespace goldstick {

namespace {

constexpr std::int64_t kSpan16 = 128;    // 128 products of 8 and 16 bits, and half of what 32 bits hold
constexpr std::int64_t kSpan8 = 32768;   // as many products of 8 and 9 bits
// Up to so many tokens, unpacking for one use costs less than unpacking for more; of bytes, unpacking is cheaper.
constexpr std::int64_t kDotTokens = 2, kDotTokensOfBytes = 4;
constexpr std::int64_t kInterleavedTokens = 16, kInterleavedTokens8 = 4;  // the same of a weight that is laid out anew

constexpr std::int64_t kQuantizedAlone = 16, kNeighbours = 64;
constexpr std::int64_t kTokens16 = 192;  // most tokens at once: their 16-bit activations fill twice as much
constexpr std::int64_t kItems = 4, kLeast = 16;  // items for each thread, and tiles of a part
constexpr std::int64_t kExcessShare = 4;  // with more than one excess in so many steps, 16 bits are faster

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
                 bool in_bytes, Isa isa, bool interleaved)
    : bits(bits), row_bytes(row_bytes), in_bytes(in_bytes), deposit(isa != Isa::kScalar && can_deposit()), steps(0) {
    const bool whole_bytes = group_size % 2 == 0 || group_size >= columns;  // in nibbles: groups begin with a byte
    const bool in_nibbles = interleaved ? bits <= 4 : bits == 4 && whole_bytes;
    shape = !in_nibbles ? Shape::kBytes : group_size <= 32 ? Shape::kHalfNibbles : Shape::kNibbles;
    direct = !interleaved && (in_nibbles || bits == 8);
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

// How a call is done.
struct Plan {
    Isa isa;
    bool few;       // tokens: codes are used as they are unpacked
    bool in_bytes;  // 8-bit activations are multiplied as such
};

// Other processors have the portable kernel alone.
BlockKernel* kernel_for([[maybe_unused]] const Plan& plan, [[maybe_unused]] bool interleaved) {
#if defined(__x86_64__)
    const bool wide = plan.isa == Isa::kAvx512;
    if (plan.isa != Isa::kScalar && plan.few) {
        return !interleaved ? block_dot_avx2 : wide ? block_interleaved_avx512 : block_interleaved_avx2;
    }
    if (plan.isa != Isa::kScalar) {
        return wide ? block_panel_avx512 : block_panel_avx2;
    }
#endif
    return block_scalar;
}

// Tokens of a tile. With AVX-512 all tiles have about as many: a rest would take almost as long as a whole one.
std::int64_t tile_of(const Plan& plan, std::int64_t tokens, bool interleaved) {
    if (plan.isa != Isa::kAvx512 || (plan.few && !interleaved)) {
        return plan.few ? 1 : kTile;
    }
    const std::int64_t tiles = std::max<std::int64_t>((tokens + kTile512 - 1) / kTile512, 1);
    return std::max<std::int64_t>((tokens + tiles - 1) / tiles, 1);
}

// Whether the activations were such as could be multiplied in this way.
template <typename T>
bool multiply(const LinearCall<T>& call, int threads, const Plan& plan) {
    const bool in_bytes = plan.in_bytes;
    const Interleaved* const interleaved = plan.isa != Isa::kScalar ? call.interleaved : nullptr;
    const Columns columns(call.columns, call.group_size, call.bits, call.row_bytes, call.rounding, in_bytes, plan.isa,
                          interleaved != nullptr);
    const auto parts = static_cast<std::int64_t>(columns.chunks.size()) * call.tokens;
    const bool may_exceed = in_bytes && call.bits == 8 && plan.isa == Isa::kAvx2;
    const std::int64_t tile = tile_of(plan, call.tokens, interleaved != nullptr);
    const std::int64_t tiles = (call.tokens + tile - 1) / tile;
    const Buffer<std::int32_t> codes(columns.steps * call.tokens), shift(parts), excesses(may_exceed ? parts : 0);
    const Buffer<Excess> excess(may_exceed ? columns.steps * tiles : 0);
    const Buffer<float> activation_scale(parts);
    const Activations activations{
        codes.data(), activation_scale.data(), shift.data(), excess.data(), may_exceed ? excesses.data() : nullptr,
        call.tokens,  tile};
    std::int64_t exceeding = 0;
    // One thread alone is done with few tokens before another is there.
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : exceeding) \
    if (threads > 1 && call.tokens > kQuantizedAlone)
    for (std::int64_t first = 0; first < call.tokens; first += tile) {
        for (std::int64_t token = first; token < std::min(first + tile, call.tokens); ++token) {
            quantize_token(call, columns, activations, token, plan.isa);
        }
        exceeding += may_exceed ? put_excess_by(columns, activations, first) : 0;
    }
    if (exceeding > columns.steps * tiles / kExcessShare) {
        return false;
    }
    BlockKernel* const run = kernel_for(plan, interleaved != nullptr);
    const std::int64_t blocks = (call.rows + kRows - 1) / kRows;
    // As few parts of the tokens as there may be, since each unpacks the weight again, but some work for every thread.
    const std::int64_t most = (in_bytes ? kTokens : kTokens16) / tile;
    const std::int64_t shared = kItems * threads / std::max<std::int64_t>(blocks, 1);
    const std::int64_t fewest = std::min<std::int64_t>(shared, tiles / kLeast);
    const std::int64_t wanted = std::max<std::int64_t>({(tiles + most - 1) / most, fewest, 1});
    const std::int64_t at_most = std::max<std::int64_t>((tiles + wanted - 1) / wanted, 1) * tile;  // tokens of a part
    const std::int64_t items = blocks * ((call.tokens + at_most - 1) / at_most);
    const int at_once = plan.few ? 8 : call.tokens <= kNeighbours ? 4 : 1;  // few tokens: neighbours, which are read ahead
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const std::int64_t gathered = interleaved ? 0 : call.groups * kRows;
        const Buffer<float> scale(gathered), zero(call.zero ? gathered : 0);
        const Buffer<float> sums(at_most * kRows);
#pragma omp for schedule(dynamic, at_once) nowait
        for (std::int64_t item = 0; item < items; ++item) {
            const std::int64_t first = item % blocks * kRows, begin = item / blocks * at_most;
            const std::int64_t end = std::min(begin + at_most, call.tokens);
            const RowBlock block =
                interleaved ? interleaved->block(first) : gather_block(call, first, scale.data(), zero.data());
            run(columns, block, activations, begin, end, sums.data());
            write_block(call, sums.data(), first, begin, end);
        }
    }
    return true;
}

}  // namespace

template <typename T>
void quantized_linear(const LinearCall<T>& call, int threads, Isa isa) {
    const bool small = call.rounding != Rounding::kInt16 && call.input_zero == 0.0f;  // activations have 8 bits
    const bool interleaved = isa != Isa::kScalar && call.interleaved, wide = isa == Isa::kAvx512;
    const std::int64_t in_rows = call.bits == 8 ? kDotTokensOfBytes : kDotTokens;
    const std::int64_t anew = wide ? kTile512 : small ? kInterleavedTokens8 : kInterleavedTokens;
    const bool few = call.tokens <= (interleaved ? anew : in_rows);
    const bool takes_bytes = isa != Isa::kScalar && (!few || (wide && interleaved));
    if (!multiply(call, threads, {isa, few, small && takes_bytes})) {
        multiply(call, threads, {isa, few, false});
    }
}

template void quantized_linear<float>(const LinearCall<float>&, int, Isa);
template void quantized_linear<bfloat16>(const LinearCall<bfloat16>&, int, Isa);

}  // namespace goldstick
