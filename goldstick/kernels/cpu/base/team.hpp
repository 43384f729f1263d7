// Threads that go from one step to the next together, and what each of them works on in a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace goldstick {

// Lets a processor rest for a moment that waits for another.
inline void pause() {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}

class Team {
public:
    explicit Team(int threads) : threads_(threads) {}

    // Wait until all have come. The last to come runs `last` before any goes on; who waits runs `idle` over and over.
    template <typename Last, typename Idle>
    void meet(Last last, Idle idle) {
        const std::uint32_t round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            last();
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int waited = 0; round_.load(std::memory_order_acquire) == round; ++waited) {
            idle();
            if (waited > kPatience) {
                std::this_thread::yield();  // others may wait for this processor
            }
        }
    }

private:
    static constexpr int kPatience = 1 << 14;
    const int threads_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> round_{0};
};

// Items of a step: each thread takes neighbours of a part of its own, and then what others have left.
class Parts {
public:
    explicit Parts(int threads) : threads_(threads), parts_(new Part[static_cast<std::size_t>(threads)]) {}

    // Begin anew, while no thread takes any.
    void reset(std::int64_t items) {
        for (int i = 0; i < threads_; ++i) {
            parts_[i].next.store(first_of(items, i), std::memory_order_relaxed);
            parts_[i].end = first_of(items, i + 1);
        }
    }

    // Where the part of a thread begins.
    std::int64_t first_of(std::int64_t items, int thread) const { return items * thread / threads_; }

    // Whether there was an item left.
    bool take(int thread, std::int64_t& item) {
        for (int i = 0; i < threads_; ++i) {
            Part& part = parts_[(thread + i) % threads_];
            if (part.next.load(std::memory_order_relaxed) < part.end) {
                item = part.next.fetch_add(1, std::memory_order_relaxed);
                if (item < part.end) {
                    return true;
                }
            }
        }
        return false;
    }

private:
    struct alignas(64) Part {
        std::atomic<std::int64_t> next{0};
        std::int64_t end = 0;
    };
    const int threads_;
    std::unique_ptr<Part[]> parts_;
};

}  // namespace goldstick
