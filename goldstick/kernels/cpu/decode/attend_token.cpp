// One token of each sequence into its cache, and its attention to all that are there.
#include "base/floats.hpp"
#include "decode/attention.hpp"
#include "decode/cache_codes.hpp"

namespace goldstick {

namespace {

// The tokens of a cache up to the one that was written.
Run run_of(const Cached& cached, std::int64_t kv_heads, std::int64_t channels) {
    const bool nibbles = cached.coding == CacheCoding::int4;
    const std::int64_t head_stride = cached.capacity * (nibbles ? channels / 2 : channels);
    const std::int64_t scale_stride = cached.scale_capacity * (nibbles ? 2 : 1);
    return {cached.data,  cached.token_scale,      kv_heads * head_stride, head_stride,
            kv_heads * scale_stride, scale_stride, cached.coding};
}

Run before_of(const Cached& cached) {
    return {cached.before, nullptr, cached.before_batch_stride, cached.before_head_stride, 0, 0, CacheCoding::none};
}

}  // namespace

template <typename T>
AttentionCall<T> write_token(const TokenCall<T>& call, bool use_avx2) {
    const bool codes = call.keys.coding != CacheCoding::none;
    const std::int64_t head_stride = codes ? call.channels : call.keys.capacity * call.channels;
    const std::int64_t place = call.filled * call.channels, numbers = call.batch * call.kv_heads * call.channels;
    T* const keys = codes ? call.states : static_cast<T*>(call.keys.data) + place;
    T* const values = codes ? call.states + numbers : static_cast<T*>(call.values.data) + place;
    rotate<T>({call.x, call.cos, call.sin, call.q, keys, values, call.batch, call.heads, call.kv_heads, call.channels,
               call.angle_stride, call.kv_heads * head_stride, head_stride},
              use_avx2);
    if (codes) {
        const auto write = [&](const T* x, const Cached& to) {
            write_codes(x, to, call.batch, call.kv_heads, call.channels, call.filled, call.turned, use_avx2);
        };
        write(keys, call.keys);
        write(values, call.values);
    }
    AttentionCall<T> attention{};
    attention.q = call.q;
    attention.out = call.out;
    attention.keys[0] = before_of(call.keys);
    attention.values[0] = before_of(call.values);
    attention.tokens[0] = call.tokens_before;
    attention.keys[1] = run_of(call.keys, call.kv_heads, call.channels);
    attention.values[1] = run_of(call.values, call.kv_heads, call.channels);
    attention.tokens[1] = call.filled + 1;
    attention.key_scale = call.keys.scale;
    attention.value_scale = call.values.scale;
    attention.batch = call.batch;
    attention.heads = call.heads;
    attention.kv_heads = call.kv_heads;
    attention.channels = call.channels;
    attention.q_stride = call.heads * call.channels;
    attention.turned = call.turned;
    attention.scaling = call.scaling;
    return attention;
}

template <typename T>
void attend_token(const TokenCall<T>& call, int threads, bool use_avx2) {
    attend(write_token(call, use_avx2), threads, use_avx2);
}

template AttentionCall<float> write_token<float>(const TokenCall<float>&, bool);
template AttentionCall<bfloat16> write_token<bfloat16>(const TokenCall<bfloat16>&, bool);
template AttentionCall<float16> write_token<float16>(const TokenCall<float16>&, bool);
template void attend_token<float>(const TokenCall<float>&, int, bool);
template void attend_token<bfloat16>(const TokenCall<bfloat16>&, int, bool);
template void attend_token<float16>(const TokenCall<float16>&, int, bool);

}  // namespace goldstick
