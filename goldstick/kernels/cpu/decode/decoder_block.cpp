// The steps of a decoder block, one after the other in scratch memory.
#include "decode/decoder_block.hpp"

#include <algorithm>
#include <vector>

#include "decode/attention.hpp"
#include "base/floats.hpp"
#include "decode/fused.hpp"

namespace goldstick {

namespace {

// Below so many products, or numbers, one thread is done before another is there.
constexpr std::int64_t kProducts = std::int64_t{1} << 16, kNumbers = std::int64_t{1} << 15;

void multiply(const PreparedLinear& layer, const void* x, void* y, std::int64_t tokens, int threads) {
    const bool many = tokens * layer.rows() * layer.columns() >= kProducts;
    layer.multiply(x, y, tokens, many ? threads : 1);
}

// The outputs of several layers side by side, [tokens, all rows].
template <typename T>
void multiply_all(const std::vector<const PreparedLinear*>& layers, const T* x, T* y, std::int64_t all,
                  std::int64_t tokens, int threads) {
    std::int64_t before = 0;
    std::vector<T> own;
    for (const PreparedLinear* layer : layers) {
        const std::int64_t rows = layer->rows();
        if (tokens == 1 || rows == all) {
            multiply(*layer, x, y + before, tokens, threads);
        } else {
            own.resize(static_cast<std::size_t>(tokens * rows));
            multiply(*layer, x, own.data(), tokens, threads);
            for (std::int64_t token = 0; token < tokens; ++token) {
                std::copy_n(own.data() + token * rows, rows, y + token * all + before);
            }
        }
        before += rows;
    }
}

template <typename T>
void add(const T* a, const T* b, std::int64_t count, T* sum) {
    for (std::int64_t i = 0; i < count; ++i) {
        store(sum + i, round_to<T>(to_float(a[i]) + to_float(b[i])));
    }
}

}  // namespace

template <typename T>
void decoder_block(const BlockCall<T>& call, int threads, bool use_avx2) {
    const auto& [qkv, output, gate_up, down] = call.layers;
    const std::int64_t batch = call.batch, width = output->rows(), inner = down->columns();
    const auto numbers = [&](std::int64_t each) { return std::vector<T>(static_cast<std::size_t>(batch * each)); };
    const auto threads_for = [&](std::int64_t each) { return batch * each >= kNumbers ? threads : 1; };
    std::vector<T> normed = numbers(width), hidden = numbers(width), changed = numbers(width);

    rms_norm<T>({call.x, call.attention_norm, normed.data(), batch, width, call.attention_epsilon}, threads_for(width),
                use_avx2);
    const std::int64_t heads_of_all = (call.heads + 2 * call.kv_heads) * call.channels;
    std::vector<T> projected = numbers(heads_of_all), q = numbers(output->columns()), heads = numbers(output->columns());
    multiply_all(qkv, normed.data(), projected.data(), heads_of_all, batch, threads);
    attend_token<T>({projected.data(), call.cos, call.sin, q.data(), heads.data(), call.keys, call.values, batch,
                     call.heads, call.kv_heads, call.channels, call.angle_stride, call.capacity, call.filled,
                     call.scaling},
                    call.filled * batch * call.heads * call.channels >= kProducts ? threads : 1, use_avx2);
    multiply(*output, heads.data(), changed.data(), batch, threads);
    add(call.x, changed.data(), batch * width, hidden.data());

    rms_norm<T>({hidden.data(), call.feed_norm, normed.data(), batch, width, call.feed_epsilon}, threads_for(width),
                use_avx2);
    std::vector<T> both = numbers(gate_up->rows()), gated = numbers(inner);
    multiply(*gate_up, normed.data(), both.data(), batch, threads);
    gated_silu<T>({both.data(), gated.data(), batch, inner}, threads_for(inner), use_avx2);
    multiply(*down, gated.data(), changed.data(), batch, threads);
    add(hidden.data(), changed.data(), batch * width, call.y);
}

template void decoder_block<float>(const BlockCall<float>&, int, bool);
template void decoder_block<bfloat16>(const BlockCall<bfloat16>&, int, bool);
template void decoder_block<float16>(const BlockCall<float16>&, int, bool);

}  // namespace goldstick
