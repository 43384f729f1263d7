#include "decode/attention.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "base/floats.hpp"
#include "base/inline.hpp"
#include "base/lanes.hpp"
#include "base/vector_math.hpp"
#include "decode/turn.hpp"
#include "decode/widen.hpp"

namespace goldstick {

namespace {

constexpr std::int64_t kTile = 32;  // tokens whose keys or values are widened together
constexpr std::int64_t kParts = 8;  // partial sums of a product of a query and a key

// Ask for memory that is read next; what lies behind the end of a run is asked for, too, and never read.
GOLDSTICK_INLINE void call_ahead(const std::byte* from, std::int64_t bytes) {
#if defined(__GNUC__)
    for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
#endif
}

// Tokens `begin` … of a run and head as floats [count][channels], of codes without their scales.
template <typename T>
GOLDSTICK_INLINE const float* floats(const Run& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                                     std::int64_t count, std::int64_t channels, float* to, bool use_avx2) {
    const std::int64_t of_token = run.coding == CacheCoding::int4 ? channels / 2 : channels;
    const std::int64_t at = batch * run.batch_stride + head * run.head_stride + begin * of_token;
    const std::int64_t elements = count * of_token, bytes = run.coding == CacheCoding::none ? sizeof(T) : 1;
    call_ahead(static_cast<const std::byte*>(run.data) + (at + elements) * bytes, elements * bytes);
    if (run.coding != CacheCoding::none) {
        widen_codes(run.coding, run.data, at, elements, to, use_avx2);
        return to;
    }
    const T* from = static_cast<const T*>(run.data) + at;
    if constexpr (sizeof(T) == sizeof(float)) {
        return from;
    } else {
        widen(from, elements, to, use_avx2);
        return to;
    }
}

GOLDSTICK_INLINE float folded_up(const Eight& parts) {
    return ((parts[0] + parts[4]) + (parts[2] + parts[6])) + ((parts[1] + parts[5]) + (parts[3] + parts[7]));
}

// scores[t] = query · keys[t].
GOLDSTICK_INLINE void multiply(const float* query, const float* keys, std::int64_t count, std::int64_t channels,
                               float* scores) {
    const std::int64_t whole = channels / kParts * kParts;
    std::int64_t t = 0;
    for (; t + 4 <= count; t += 4) {  // four at once, as additions take their time
        const float* const k = keys + t * channels;
        Eight a{}, b{}, c{}, d{};
        for (std::int64_t i = 0; i < whole; i += kParts) {
            const Eight q = eight_at(query + i);
            a += q * eight_at(k + i);
            b += q * eight_at(k + channels + i);
            c += q * eight_at(k + 2 * channels + i);
            d += q * eight_at(k + 3 * channels + i);
        }
        scores[t] = folded_up(a);
        scores[t + 1] = folded_up(b);
        scores[t + 2] = folded_up(c);
        scores[t + 3] = folded_up(d);
    }
    for (; t < count; ++t) {
        Eight a{};
        for (std::int64_t i = 0; i < whole; i += kParts) a += eight_at(query + i) * eight_at(keys + t * channels + i);
        scores[t] = folded_up(a);
    }
    for (t = 0; t < count; ++t) {
        for (std::int64_t i = whole; i < channels; ++i) scores[t] += query[i] * keys[t * channels + i];
    }
}

// sums += Σ over t  weights[t] · values[t].
GOLDSTICK_INLINE void add_weighted(const float* weights, const float* values, std::int64_t count,
                                   std::int64_t channels, float* sums) {
    std::int64_t i = 0;
    for (; i + 4 * kParts <= channels; i += 4 * kParts) {
        Eight a = eight_at(sums + i), b = eight_at(sums + i + 8), c = eight_at(sums + i + 16),
              d = eight_at(sums + i + 24);
        for (std::int64_t t = 0; t < count; ++t) {
            const float* const v = values + t * channels + i;
            a += eight_at(v) * weights[t];
            b += eight_at(v + 8) * weights[t];
            c += eight_at(v + 16) * weights[t];
            d += eight_at(v + 24) * weights[t];
        }
        eight_at(sums + i) = a;
        eight_at(sums + i + 8) = b;
        eight_at(sums + i + 16) = c;
        eight_at(sums + i + 24) = d;
    }
    for (; i < channels; ++i) {
        for (std::int64_t t = 0; t < count; ++t) sums[i] += values[t * channels + i] * weights[t];
    }
}

// Turn scores into the weights of a softmax that still have to be divided by the sum that is returned.
GOLDSTICK_INLINE float exponentiate(float* scores, std::int64_t count) {
    float largest[kParts];
    std::fill_n(largest, kParts, -std::numeric_limits<float>::infinity());
    std::int64_t i = 0;
    for (; i + kParts <= count; i += kParts) {
        for (std::int64_t part = 0; part < kParts; ++part) {
            largest[part] = scores[i + part] > largest[part] ? scores[i + part] : largest[part];
        }
    }
    for (; i < count; ++i) largest[0] = scores[i] > largest[0] ? scores[i] : largest[0];
    const float top = *std::max_element(largest, largest + kParts);
    for (i = 0; i < count; ++i) scores[i] = exponential(scores[i] - top);
    float parts[kParts] = {};
    for (i = 0; i + kParts <= count; i += kParts) {
        for (std::int64_t part = 0; part < kParts; ++part) parts[part] += scores[i + part];
    }
    for (; i < count; ++i) parts[i % kParts] += scores[i];
    for (std::int64_t half = kParts / 2; half > 0; half /= 2) {
        for (std::int64_t part = 0; part < half; ++part) parts[part] += parts[part + half];
    }
    return parts[0];
}

// The scales of a run's tokens, of one sequence and head.
struct TokenScales {
    const float* scale;     // or null
    std::int64_t distance;  // 2 where each has a minimum behind it

    GOLDSTICK_INLINE TokenScales(const Run& run, std::int64_t batch, std::int64_t head)
        : scale(run.token_scale ? run.token_scale + batch * run.scale_batch_stride + head * run.scale_head_stride
                                : nullptr),
          distance(run.coding == CacheCoding::int4 ? 2 : 1) {}

    // Scores of codes become those of what they stand for; `query` is Σ of the query over its channels.
    GOLDSTICK_INLINE void scale_scores(float* scores, std::int64_t begin, std::int64_t count, float query) const {
        if (scale == nullptr) return;
        const float* const from = scale + begin * distance;
        if (distance == 1) {
            for (std::int64_t t = 0; t < count; ++t) scores[t] *= from[t];
        } else {
            for (std::int64_t t = 0; t < count; ++t) scores[t] = scores[t] * from[2 * t] + from[2 * t + 1] * query;
        }
    }

    // Weights of values become those of codes; Σ of weights times minimums, which goes to every channel.
    GOLDSTICK_INLINE float scale_weights(float* weights, std::int64_t begin, std::int64_t count) const {
        float sum = 0.0f;
        if (scale == nullptr) return sum;
        const float* const from = scale + begin * distance;
        for (std::int64_t t = 0; t < count; ++t) {
            if (distance == 2) sum += weights[t] * from[2 * t + 1];
            weights[t] *= from[distance * t];
        }
        return sum;
    }
};

// One sequence and one head of the cache: all query heads that read it. `scratch` holds scratch_size() numbers.
template <typename T>
GOLDSTICK_INLINE void attend_head(const AttentionCall<T>& call, std::int64_t batch, std::int64_t head,
                                  std::int64_t total, float* scratch, bool use_avx2) {
    const std::int64_t channels = call.channels, group = call.heads / call.kv_heads;
    float* const tile = scratch;
    float* const plain = tile + kTile * channels;         // [group][channels], q · scaling
    float* const folded = plain + group * channels;       // times the scales of the keys' channels
    float* const sums = folded + group * channels;        // [group][channels]
    float* const coded_sums = sums + group * channels;    // of values that are codes
    float* const scores = coded_sums + group * channels;  // [group][total]
    const T* q = call.q + batch * call.q_stride + head * group * channels;
    for (std::int64_t i = 0; i < group * channels; ++i) {
        plain[i] = to_float(q[i]) * call.scaling;
        folded[i] = call.key_scale ? plain[i] * call.key_scale[head * channels + i % channels] : plain[i];
    }
    if (call.turned) turn(folded, group * channels, call.turned);
    float query_sums[kMostGrouped] = {};  // of the folded queries
    for (std::int64_t g = 0; g < group; ++g) {
        for (std::int64_t i = 0; i < channels; ++i) query_sums[g] += folded[g * channels + i];
    }
    std::int64_t at = 0;
    for (int r = 0; r < kRuns; ++r) {
        const Run& run = call.keys[r];
        const float* const queries = run.coding == CacheCoding::none ? plain : folded;
        const TokenScales scales(run, batch, head);
        for (std::int64_t begin = 0; begin < call.tokens[r]; begin += kTile, at += kTile) {
            const std::int64_t count = std::min(kTile, call.tokens[r] - begin);
            const float* const keys = floats<T>(run, batch, head, begin, count, channels, tile, use_avx2);
            for (std::int64_t g = 0; g < group; ++g) {
                float* const to = scores + g * total + at;
                multiply(queries + g * channels, keys, count, channels, to);
                scales.scale_scores(to, begin, count, query_sums[g]);
            }
        }
        at -= (kTile - call.tokens[r] % kTile) % kTile;  // the last tile was shorter
    }
    float divisors[kMostGrouped];
    for (std::int64_t g = 0; g < group; ++g) divisors[g] = exponentiate(scores + g * total, total);
    std::fill_n(sums, 2 * group * channels, 0.0f);
    float minimums[kMostGrouped] = {};  // what all channels of coded_sums have on top
    at = 0;
    for (int r = 0; r < kRuns; ++r) {
        const Run& run = call.values[r];
        float* const into = run.coding == CacheCoding::none ? sums : coded_sums;
        const TokenScales scales(run, batch, head);
        for (std::int64_t begin = 0; begin < call.tokens[r]; begin += kTile, at += kTile) {
            const std::int64_t count = std::min(kTile, call.tokens[r] - begin);
            const float* const values = floats<T>(run, batch, head, begin, count, channels, tile, use_avx2);
            for (std::int64_t g = 0; g < group; ++g) {
                float* const weights = scores + g * total + at;
                minimums[g] += scales.scale_weights(weights, begin, count);
                add_weighted(weights, values, count, channels, into + g * channels);
            }
        }
        at -= (kTile - call.tokens[r] % kTile) % kTile;
    }
    for (std::int64_t g = 0; g < group; ++g) {
        for (std::int64_t i = 0; i < channels; ++i) coded_sums[g * channels + i] += minimums[g];
    }
    if (call.turned) turn(coded_sums, group * channels, call.turned);
    T* out = call.out + (batch * call.heads + head * group) * channels;
    for (std::int64_t g = 0; g < group; ++g) {
        for (std::int64_t i = 0; i < channels; ++i) {
            const float coded = coded_sums[g * channels + i];
            const float all = sums[g * channels + i] +
                              (call.value_scale ? coded * call.value_scale[head * channels + i] : coded);
            store(out + g * channels + i, round_to<T>(all / divisors[g]));
        }
    }
}

template <typename T>
GOLDSTICK_INLINE void rotate_head(const T* x, const T* cos, const T* sin, std::int64_t channels, T* y) {
    const std::int64_t half = channels / 2;
    for (std::int64_t i = 0; i < half; ++i) {
        const float low = to_float(x[i]), high = to_float(x[i + half]);
        const float a = round_to<T>(low * to_float(cos[i])), b = round_to<T>(-high * to_float(sin[i]));
        const float c = round_to<T>(high * to_float(cos[i + half])), d = round_to<T>(low * to_float(sin[i + half]));
        store(y + i, round_to<T>(a + b));
        store(y + i + half, round_to<T>(c + d));
    }
}

template <typename T>
GOLDSTICK_INLINE void rotate_in(const RotaryCall<T>& call) {
    const std::int64_t channels = call.channels;
    for (std::int64_t b = 0; b < call.batch; ++b) {
        const T* x = call.x + b * (call.heads + 2 * call.kv_heads) * channels;
        const T* cos = call.cos + b * call.angle_stride;
        const T* sin = call.sin + b * call.angle_stride;
        for (std::int64_t h = 0; h < call.heads; ++h, x += channels) {
            rotate_head(x, cos, sin, channels, call.q + (b * call.heads + h) * channels);
        }
        for (std::int64_t h = 0; h < call.kv_heads; ++h, x += channels) {
            rotate_head(x, cos, sin, channels, call.keys + b * call.batch_stride + h * call.head_stride);
        }
        for (std::int64_t h = 0; h < call.kv_heads; ++h, x += channels) {
            std::copy_n(x, channels, call.values + b * call.batch_stride + h * call.head_stride);
        }
    }
}

template <typename T>
GOLDSTICK_AVX2 void attend_avx2(const AttentionCall<T>& call, std::int64_t batch, std::int64_t head,
                                std::int64_t total, float* scratch) {
    attend_head(call, batch, head, total, scratch, true);
}
template <typename T>
void attend_scalar(const AttentionCall<T>& call, std::int64_t batch, std::int64_t head, std::int64_t total,
                   float* scratch) {
    attend_head(call, batch, head, total, scratch, false);
}
template <typename T>
GOLDSTICK_AVX2 void rotate_avx2(const RotaryCall<T>& call) {
    rotate_in(call);
}
template <typename T>
void rotate_scalar(const RotaryCall<T>& call) {
    rotate_in(call);
}

}  // namespace

template <typename T>
std::int64_t scratch_of(const AttentionCall<T>& call) {
    std::int64_t total = 0;
    for (const std::int64_t tokens : call.tokens) total += tokens;
    return kTile * call.channels + call.heads / call.kv_heads * (4 * call.channels + total);
}

template <typename T>
void attend_item(const AttentionCall<T>& call, std::int64_t item, float* scratch, bool use_avx2) {
    std::int64_t total = 0;
    for (const std::int64_t tokens : call.tokens) total += tokens;
    (use_avx2 ? attend_avx2<T> : attend_scalar<T>)(call, item / call.kv_heads, item % call.kv_heads, total, scratch);
}

template <typename T>
void attend(const AttentionCall<T>& call, int threads, bool use_avx2) {
    const std::int64_t items = call.batch * call.kv_heads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> scratch(static_cast<std::size_t>(scratch_of(call)));
#pragma omp for schedule(dynamic, 1)
        for (std::int64_t item = 0; item < items; ++item) {
            attend_item(call, item, scratch.data(), use_avx2);
        }
    }
}

template <typename T>
void rotate(const RotaryCall<T>& call, bool use_avx2) {
    (use_avx2 ? rotate_avx2<T> : rotate_scalar<T>)(call);
}

template void attend<float>(const AttentionCall<float>&, int, bool);
template void attend<bfloat16>(const AttentionCall<bfloat16>&, int, bool);
template void attend<float16>(const AttentionCall<float16>&, int, bool);
template std::int64_t scratch_of<float>(const AttentionCall<float>&);
template void attend_item<float>(const AttentionCall<float>&, std::int64_t, float*, bool);
template std::int64_t scratch_of<bfloat16>(const AttentionCall<bfloat16>&);
template void attend_item<bfloat16>(const AttentionCall<bfloat16>&, std::int64_t, float*, bool);
template std::int64_t scratch_of<float16>(const AttentionCall<float16>&);
template void attend_item<float16>(const AttentionCall<float16>&, std::int64_t, float*, bool);
template void rotate<float>(const RotaryCall<float>&, bool);
template void rotate<bfloat16>(const RotaryCall<bfloat16>&, bool);
template void rotate<float16>(const RotaryCall<float16>&, bool);

}  // namespace goldstick
