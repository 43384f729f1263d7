// The steps of decoder blocks, one after the other, which a team of threads goes through together. What one thread does
// alone, the last to come to a step does; the others call for the weights that they are going to read.
#include "decode/decoder_block.hpp"

#include <algorithm>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "base/floats.hpp"
#include "base/team.hpp"
#include "decode/attention.hpp"
#include "decode/block_product.hpp"
#include "decode/fused.hpp"
#include "linear/interleaved.hpp"

namespace goldstick {

namespace {

template <typename T>
void add(const T* a, const T* b, std::int64_t count, T* sum) {
    for (std::int64_t i = 0; i < count; ++i) {
        store(sum + i, round_to<T>(to_float(a[i]) + to_float(b[i])));
    }
}

// What blocks of one shape write between their products.
template <typename T>
struct Between {
    std::vector<T> normed, hidden, changed, projected, q, states, heads, both, gated;
};

template <typename T>
class Steps {
public:
    Steps(const std::vector<BlockCall<T>>& calls, int threads, bool use_avx2)
        : calls_(calls), threads_(threads), use_avx2_(use_avx2), team_(threads), product_(threads, chosen_isa()),
          items_(threads) {
        begin_block(0);
    }

    // All steps of all blocks, as one of the threads.
    void run(int thread) {
        for (std::size_t block = 0; block < calls_.size(); ++block) {
            const auto& [qkv, output, gate_up, down] = calls_[block].layers;
            const bool last = block + 1 == calls_.size();
            multiply(thread, nothing_after);
            team_.meet([&] { begin_attention(block); }, pause);
            attend(thread);
            team_.meet([&] { begin_output(block); }, first_weights<T>({output}, thread, threads_, false));
            multiply(thread, nothing_after);
            team_.meet([&] { begin_feed(block); }, first_weights<T>({gate_up}, thread, threads_, true));
            multiply(thread, [&](auto... part) { gate(part...); });
            team_.meet([&] { begin_down(block); }, first_weights<T>({down}, thread, threads_, false));
            multiply(thread, nothing_after);
            const Ahead next = last ? Ahead() : first_weights<T>(calls_[block + 1].layers.qkv, thread, threads_, false);
            team_.meet([&] { end_block(block); }, next);
        }
    }

private:
    static void nothing_after(std::int64_t, std::int64_t, std::int64_t, std::int64_t) {}

    template <typename After>
    void multiply(int thread, After after) {
        if (product_.round(thread)) {
            team_.meet([] {}, pause);
        }
        product_.work(thread, after);
    }

    void begin_block(std::size_t block) {
        const BlockCall<T>& call = calls_[block];
        const std::int64_t width = call.layers.output->rows(), inner = call.layers.down->columns();
        const std::int64_t of_heads = call.layers.output->columns();
        const auto size = [&](std::vector<T>& numbers, std::int64_t each) {
            numbers.resize(static_cast<std::size_t>(call.batch * each));
        };
        size(own_.normed, width);
        size(own_.hidden, width);
        size(own_.changed, width);
        size(own_.projected, (call.heads + 2 * call.kv_heads) * call.channels);
        size(own_.q, of_heads);
        size(own_.states, 2 * call.kv_heads * call.channels);
        size(own_.heads, of_heads);
        size(own_.both, 2 * inner);
        size(own_.gated, inner);
        norm(call.x, call.attention_norm, call.attention_epsilon, call);
        product_.begin(call.layers.qkv, own_.normed.data(), own_.projected.data(), call.batch, false);
    }

    void begin_attention(std::size_t block) {
        const BlockCall<T>& call = calls_[block];
        product_.end();
        attentions_.clear();
        scratch_ = 0;
        const std::int64_t of_heads = call.heads * call.channels, of_states = 2 * call.kv_heads * call.channels;
        const std::int64_t all = of_heads + of_states;
        for (const Place& place : call.places) {
            attentions_.push_back(write_token<T>(
                {own_.projected.data() + place.first * all, call.cos + place.first * call.angle_stride,
                 call.sin + place.first * call.angle_stride, own_.q.data() + place.first * of_heads,
                 own_.heads.data() + place.first * of_heads, own_.states.data() + place.first * of_states, place.keys,
                 place.values, place.sequences, call.heads, call.kv_heads, call.channels, call.angle_stride, place.filled,
                 place.tokens_before, place.turned, call.scaling},
                use_avx2_));
            scratch_ = std::max(scratch_, scratch_of(attentions_.back()));
        }
        items_.reset(call.batch * call.kv_heads);
    }

    void attend(int thread) {
        std::vector<float> scratch(static_cast<std::size_t>(scratch_));
        const std::int64_t each = attentions_[0].batch * attentions_[0].kv_heads;  // all places have as many sequences
        for (std::int64_t item = 0; items_.take(thread, item);) {
            attend_item(attentions_[static_cast<std::size_t>(item / each)], item % each, scratch.data(), use_avx2_);
        }
    }

    void begin_output(std::size_t block) {
        const BlockCall<T>& call = calls_[block];
        product_.begin({call.layers.output}, own_.heads.data(), own_.changed.data(), call.batch, false);
    }

    void begin_feed(std::size_t block) {
        const BlockCall<T>& call = calls_[block];
        product_.end();
        add(call.x, own_.changed.data(), call.batch * call.layers.output->rows(), own_.hidden.data());
        norm(own_.hidden.data(), call.feed_norm, call.feed_epsilon, call);
        inner_ = call.layers.down->columns();
        product_.begin({call.layers.gate_up}, own_.normed.data(), own_.both.data(), call.batch, true);
    }

    void gate(std::int64_t row, std::int64_t count, std::int64_t begin, std::int64_t end) {
        for (std::int64_t token = begin; token < end; ++token) {
            const T* const from = own_.both.data() + token * 2 * inner_ + row;
            gate_numbers(from, from + inner_, own_.gated.data() + token * inner_ + row, count, use_avx2_);
        }
    }

    void begin_down(std::size_t block) {
        const BlockCall<T>& call = calls_[block];
        if (!product_.halves()) {
            gate(0, inner_, 0, call.batch);
        }
        product_.begin({call.layers.down}, own_.gated.data(), own_.changed.data(), call.batch, false);
    }

    void end_block(std::size_t block) {
        const BlockCall<T>& call = calls_[block];
        add(own_.hidden.data(), own_.changed.data(), call.batch * call.layers.output->rows(), call.y);
        if (block + 1 < calls_.size()) {
            begin_block(block + 1);
        }
    }

    void norm(const T* x, const T* weight, float epsilon, const BlockCall<T>& call) {
        rms_norm<T>({x, weight, own_.normed.data(), call.batch, call.layers.output->rows(), epsilon}, 1, use_avx2_);
    }

    const std::vector<BlockCall<T>>& calls_;
    const int threads_;
    const bool use_avx2_;
    Team team_;
    BlockProduct<T> product_;
    Parts items_;
    Between<T> own_;
    std::vector<AttentionCall<T>> attentions_;
    std::int64_t scratch_ = 0;
    std::int64_t inner_ = 0;
};

}  // namespace

template <typename T>
void decoder_blocks(const std::vector<BlockCall<T>>& calls, int threads, bool use_avx2) {
#if defined(_OPENMP)
    std::optional<Steps<T>> steps;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp single
        steps.emplace(calls, omp_get_num_threads(), use_avx2);
        steps->run(omp_get_thread_num());
    }
#else
    Steps<T>(calls, 1, use_avx2).run(0);
#endif
}

template void decoder_blocks<float>(const std::vector<BlockCall<float>>&, int, bool);
template void decoder_blocks<bfloat16>(const std::vector<BlockCall<bfloat16>>&, int, bool);
template void decoder_blocks<float16>(const std::vector<BlockCall<float16>>&, int, bool);

}  // namespace goldstick
