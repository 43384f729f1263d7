#include "linear/plan.hpp"

#include "base/floats.hpp"
#include "linear/interleaved.hpp"

namespace goldstick {

namespace {

// Up to so many tokens, unpacking for one use costs less than unpacking for more; of bytes, unpacking is cheaper.
constexpr std::int64_t kDotTokens = 2, kDotTokensOfBytes = 4;
constexpr std::int64_t kInterleavedTokens = 16, kInterleavedTokens8 = 4;  // the same of a weight that is prepacked

// From so many tokens on AMX is faster, whose matrices are filled up to 16; with groups shorter than a matrix from more,
// with 16-bit inputs and weights as they were loaded from fewer.
constexpr std::int64_t kAmxTokens = 12, kAmxTokensOfShort = 20, kAmxTokensAsLoaded = 3, kAmxMatrix = 64, kAmxGroup = 32;

constexpr std::int64_t kTokens16 = 192;   // most tokens at once: their 16-bit activations fill twice as much
constexpr std::int64_t kTokensAmx = 256;  // the same for AMX, of 8-bit activations
constexpr std::int64_t kItems = 4, kLeast = 16;  // items for each thread, and tiles of a part

std::int64_t parts(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

}  // namespace

template <typename T>
Plan plan_of(const LinearCall<T>& call, Isa isa, bool bytes) {
    const bool small = call.rounding != Rounding::kInt16 && call.input_zero == 0.0f;  // activations have 8 bits or 4
    const std::int64_t amx_tokens = call.group_size < kAmxMatrix ? kAmxTokensOfShort
                                    : small || call.interleaved  ? kAmxTokens
                                                                 : kAmxTokensAsLoaded;
    if (isa == Isa::kAmx && call.tokens >= amx_tokens && call.group_size >= kAmxGroup) {
        return {isa, false, true, !small, call.interleaved != nullptr, kTile512, parts(call.tokens, kTile512),
                false, false};
    }
    Plan plan{};
    plan.isa = std::min(isa, Isa::kAvx512);
    plan.interleaved = isa != Isa::kScalar && call.interleaved;
    const bool wide = plan.isa == Isa::kAvx512;
    const std::int64_t in_rows = call.bits == 8 ? kDotTokensOfBytes : kDotTokens;
    const std::int64_t anew = wide ? kTile512 : small ? kInterleavedTokens8 : kInterleavedTokens;
    plan.few = call.tokens <= (plan.interleaved ? anew : in_rows);
    const bool few_wide = plan.few && wide && plan.interleaved;
    // A kernel of superblocks reads 8-bit inputs as low bytes, beside high ones that are 0.
    const bool low_alone = call.rounding == Rounding::kInt8Group && plan.interleaved && call.interleaved->in_superblocks();
    plan.halved = few_wide && (!small || low_alone) && call.tokens <= kHalvedTokens;
    plan.in_bytes = plan.halved || (bytes && small && isa != Isa::kScalar && (!plan.few || few_wide));
    plan.superblocks = plan.halved && call.interleaved->in_superblocks();
    plan.tile = plan.few ? 1 : kTile;
    if (wide && (!plan.few || plan.interleaved)) {
        // All about as large: a rest would take almost as long as a whole one.
        const std::int64_t tiles = std::max<std::int64_t>(parts(call.tokens, kTile512), 1);
        plan.tile = std::max<std::int64_t>(parts(call.tokens, tiles), 1);
    }
    plan.tiles = parts(call.tokens, plan.tile);
    plan.may_exceed = plan.in_bytes && call.coding.width == 8 && plan.isa == Isa::kAvx2;
    return plan;
}

template Plan plan_of<float>(const LinearCall<float>&, Isa, bool);
template Plan plan_of<bfloat16>(const LinearCall<bfloat16>&, Isa, bool);
template Plan plan_of<float16>(const LinearCall<float16>&, Isa, bool);

BlockKernel* Plan::kernel() const {
#if defined(__x86_64__)
    switch (isa) {
#if defined(GOLDSTICK_HAS_AMX)
        case Isa::kAmx: return block_gemm_amx;
#endif
        case Isa::kAvx512:
            if (superblocks) return block_superblocks_avx512;
            return !few ? block_gemm_avx512 : interleaved ? block_interleaved_avx512 : block_dot_avx2;
        case Isa::kAvx2: return !few ? block_gemm_avx2 : interleaved ? block_interleaved_avx2 : block_dot_avx2;
        default: break;
    }
#endif
    return block_scalar;
}

std::int64_t Plan::tokens_of_part(std::int64_t blocks, int threads) const {
    const std::int64_t most = in_matrices() ? kTokensAmx / (halved ? 2 : 1) : in_bytes ? kTokens : kTokens16;
    const std::int64_t shared = kItems * threads / std::max<std::int64_t>(blocks, 1);
    const std::int64_t fewest = std::min<std::int64_t>(shared, tiles / kLeast);
    const std::int64_t wanted = std::max<std::int64_t>({parts(tiles, most / tile), fewest, 1});
    return std::max<std::int64_t>(parts(tiles, wanted), 1) * tile;
}

}  // namespace goldstick
