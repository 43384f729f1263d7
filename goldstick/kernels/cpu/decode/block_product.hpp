// A product of a decoder block that a team of threads works on: one layer, or several whose outputs lie side by side.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/team.hpp"
#include "linear/linear_work.hpp"
#include "linear/prepared_linear.hpp"

namespace goldstick {

// A stretch of memory that is called for, a little at a time, by a thread that waits.
class Ahead {
public:
    Ahead() = default;
    Ahead(const void* from, std::int64_t bytes) : at_(static_cast<const std::byte*>(from)), end_(at_ + bytes) {}

    void operator()() {
        if (at_ >= end_) {
            pause();
            return;
        }
#if defined(__GNUC__)
        for (int line = 0; line < kLines; ++line) __builtin_prefetch(at_ + line * 64, 0, 2);
#endif
        at_ += kLines * 64;
    }

private:
    static constexpr int kLines = 4;
    const std::byte* at_ = nullptr;
    const std::byte* end_ = nullptr;
};

template <typename T>
class BlockProduct {
public:
    BlockProduct(int threads, Isa isa) : threads_(threads), isa_(isa), parts_(threads) {}

    // Begin anew with x [tokens, columns] and y [tokens, all rows]; `halves`: items are pairs of blocks, one of each half of
    // the rows, where that can be.
    void begin(const std::vector<const PreparedLinear*>& layers, const T* x, T* y, std::int64_t tokens, bool halves) {
        layers_ = layers;
        works_.clear();
        firsts_.assign(1, 0);
        y_ = y;
        tokens_ = tokens;
        rows_ = 0;
        for (const PreparedLinear* layer : layers) rows_ += layer->rows();
        std::int64_t before = 0;
        outputs_.resize(tokens > 1 ? layers.size() : 0);
        for (std::size_t i = 0; i < layers.size(); ++i) {
            const auto& layer = static_cast<const PreparedLinearOf<T>&>(*layers[i]);
            T* out = y + before;
            if (tokens > 1 && layers.size() > 1) {  // tokens of one layer lie together, and are spread out at the end
                outputs_[i].resize(static_cast<std::size_t>(tokens * layer.rows()));
                out = outputs_[i].data();
            }
            rounded(layer.call(x, out, tokens));
            before += layer.rows();
            firsts_.push_back(firsts_.back() + works_.back().items());
        }
        const LinearWork<T>& only = works_.front();
        halves_ = halves && layers.size() == 1 && rows_ % (2 * only.rows_together()) == 0;
        parts_.reset(halves_ ? firsts_.back() / 2 : firsts_.back());
    }

    bool halves() const { return halves_; }

    // Round this thread's part of the inputs. Returns whether all have to meet before any multiplies.
    bool round(int thread) const {
        bool in_parts = false;
        for (const LinearWork<T>& work : works_) {
            if (threads_ > 1 && work.rounds_in_parts()) {
                work.round_part(thread, threads_);
                in_parts = true;
            }
        }
        return in_parts;
    }

    // Multiply until nothing is left. `after(first row, rows, first token, last token)` is called with the first half's rows of
    // what is done, where halves go together.
    template <typename After>
    void work(int thread, After after) {
        std::vector<std::optional<typename LinearWork<T>::Scratch>> scratch(works_.size());
        for (std::int64_t item = 0; parts_.take(thread, item);) {
            if (halves_) {
                const LinearWork<T>& only = works_.front();
                const std::int64_t half = only.blocks() / 2, first = item / half * only.blocks() + item % half;
                if (!scratch[0]) scratch[0].emplace(only);
                only.run(first, *scratch[0]);
                only.run(first + half, *scratch[0]);
                after(item % half * only.rows_together(), only.rows_together(), only.first_token(first),
                      std::min(only.last_token(first), tokens_));
                continue;
            }
            const auto i = static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), item) - firsts_.begin() - 1);
            if (!scratch[i]) scratch[i].emplace(works_[i]);
            works_[i].run(item - firsts_[i], *scratch[i]);
        }
    }

    // Once all is multiplied.
    void end() {
        std::int64_t before = 0;
        for (std::size_t i = 0; tokens_ > 1 && layers_.size() > 1 && i < layers_.size(); ++i) {
            const std::int64_t rows = layers_[i]->rows();
            for (std::int64_t token = 0; token < tokens_; ++token) {
                std::copy_n(outputs_[i].data() + token * rows, rows, y_ + token * rows_ + before);
            }
            before += rows;
        }
    }

private:
    void rounded(const LinearCall<T>& call) {
        works_.emplace_back(call, threads_, isa_);
        if (threads_ > 1 && works_.back().rounds_in_parts()) {
            return;  // in the next step
        }
        if (!round_all(call, works_.back())) {
            works_.pop_back();
            works_.emplace_back(call, threads_, isa_, false);
            round_all(call, works_.back());
        }
    }

    bool round_all(const LinearCall<T>& call, const LinearWork<T>& work) {
        std::int64_t exceeding = 0;
        for (std::int64_t first = 0; first < call.tokens; first += work.plan().tile) exceeding += work.round_tile(first);
        return !work.exceeds(exceeding);
    }

    const int threads_;
    const Isa isa_;
    Parts parts_;
    std::vector<const PreparedLinear*> layers_;
    std::deque<LinearWork<T>> works_;
    std::vector<std::int64_t> firsts_;  // items before each, and all
    std::vector<std::vector<T>> outputs_;
    T* y_ = nullptr;
    std::int64_t tokens_ = 0, rows_ = 0;
    bool halves_ = false;
};

// What a thread that is going to work on layers reads first of their weights.
template <typename T>
Ahead first_weights(const std::vector<const PreparedLinear*>& layers, int thread, int threads, bool halves) {
    constexpr std::int64_t kMost = 512 << 10;  // half of a second cache
    const auto& layer = static_cast<const PreparedLinearOf<T>&>(*layers[thread > 0 ? layers.size() - 1 : 0]);
    const LinearCall<T> call = layer.call(nullptr, nullptr, 1);
    if (!call.interleaved) {
        return {};
    }
    const std::int64_t blocks = (call.rows + kRows - 1) / kRows / (halves ? 2 : 1);
    const std::int64_t first = blocks * thread / threads, last = blocks * (thread + 1) / threads;
    const auto* const begin = reinterpret_cast<const std::byte*>(call.interleaved->block(first * kRows).words);
    const auto* const end = reinterpret_cast<const std::byte*>(call.interleaved->block(last * kRows).words);
    return {begin, std::min<std::int64_t>(end - begin, kMost)};
}

}  // namespace goldstick
