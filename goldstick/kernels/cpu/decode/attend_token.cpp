// One token of each sequence into its cache, and its attention to all that are there.
#include "decode/attention.hpp"
#include "base/floats.hpp"

namespace goldstick {

template <typename T>
AttentionCall<T> write_token(const TokenCall<T>& call, bool use_avx2) {
    const std::int64_t head_stride = call.capacity * call.channels, batch_stride = call.kv_heads * head_stride;
    const std::int64_t place = call.filled * call.channels;
    rotate<T>({call.x, call.cos, call.sin, call.q, call.keys + place, call.values + place, call.batch, call.heads,
               call.kv_heads, call.channels, call.angle_stride, batch_stride, head_stride},
              use_avx2);
    AttentionCall<T> attention{};
    attention.q = call.q;
    attention.out = call.out;
    attention.keys[0] = {call.keys, nullptr, batch_stride, head_stride, 0, 0, CacheCoding::none};
    attention.values[0] = {call.values, nullptr, batch_stride, head_stride, 0, 0, CacheCoding::none};
    attention.tokens[0] = call.filled + 1;
    attention.batch = call.batch;
    attention.heads = call.heads;
    attention.kv_heads = call.kv_heads;
    attention.channels = call.channels;
    attention.q_stride = call.heads * call.channels;
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
