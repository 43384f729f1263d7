#include "decode/cache_numbers.hpp"

#include <algorithm>
#include <vector>

#include "base/floats.hpp"
#include "base/inline.hpp"
#include "decode/turn.hpp"
#include "decode/widen.hpp"

namespace goldstick {

namespace {

constexpr std::int64_t kTile = 32;  // tokens that are widened together

// Tokens `begin` … of one sequence and head.
template <typename T>
GOLDSTICK_INLINE void write_tile(const CacheNumbers<T>& call, std::int64_t head, std::int64_t begin, std::int64_t count,
                                 float* tile, bool use_avx2) {
    const Run& run = call.run;
    const bool nibbles = run.coding == CacheCoding::int4;
    const std::int64_t channels = call.channels, of_token = nibbles ? channels / 2 : channels;
    const std::int64_t sequence = head / call.kv_heads, own = head % call.kv_heads;
    const std::int64_t at = sequence * run.batch_stride + own * run.head_stride + begin * of_token;
    widen_codes(run.coding, run.data, at, count * of_token, tile, use_avx2);
    const float* const token_scale =
        run.token_scale ? run.token_scale + sequence * run.scale_batch_stride + own * run.scale_head_stride : nullptr;
    const float* const scale = call.scale ? call.scale + own * channels : nullptr;
    for (std::int64_t t = 0; t < count; ++t) {
        float* const x = tile + t * channels;
        if (nibbles) {
            const float step = token_scale[2 * (begin + t)], low = token_scale[2 * (begin + t) + 1];
            for (std::int64_t i = 0; i < channels; ++i) x[i] = x[i] * step + low;
        } else if (scale) {
            for (std::int64_t i = 0; i < channels; ++i) x[i] *= scale[i];
        } else {
            const float step = token_scale[begin + t];
            for (std::int64_t i = 0; i < channels; ++i) x[i] *= step;
        }
    }
    if (call.turned >= kSmallestTransform) {
        hadamard<float>({tile, tile, count * channels / call.turned, call.turned}, 1, chosen_isa());
    } else if (call.turned) {
        turn(tile, count * channels, call.turned);
    }
    T* const out = call.out + (head * call.tokens + begin) * channels;
    for (std::int64_t i = 0; i < count * channels; ++i) store(out + i, round_to<T>(tile[i]));
}

template <typename T>
GOLDSTICK_AVX2 void write_avx2(const CacheNumbers<T>& call, std::int64_t head, std::int64_t begin, std::int64_t count,
                               float* tile) {
    write_tile(call, head, begin, count, tile, true);
}
template <typename T>
void write_scalar(const CacheNumbers<T>& call, std::int64_t head, std::int64_t begin, std::int64_t count, float* tile) {
    write_tile(call, head, begin, count, tile, false);
}

}  // namespace

template <typename T>
void write_numbers(const CacheNumbers<T>& call, int threads, bool use_avx2) {
    const std::int64_t tiles = (call.tokens + kTile - 1) / kTile, heads = call.batch * call.kv_heads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> tile(static_cast<std::size_t>(kTile * call.channels));
#pragma omp for schedule(static)
        for (std::int64_t item = 0; item < heads * tiles; ++item) {
            const std::int64_t begin = item % tiles * kTile, count = std::min(kTile, call.tokens - begin);
            (use_avx2 ? write_avx2<T> : write_scalar<T>)(call, item / tiles, begin, count, tile.data());
        }
    }
}

template void write_numbers<float>(const CacheNumbers<float>&, int, bool);
template void write_numbers<bfloat16>(const CacheNumbers<bfloat16>&, int, bool);
template void write_numbers<float16>(const CacheNumbers<float16>&, int, bool);

}  // namespace goldstick
