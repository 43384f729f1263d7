// Items handed out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace goldstick {

// Each time a share of what is left: many neighbours at first, which are read ahead, and few at last, so that all
// threads are done at once, whichever is slower.
class Shares {
public:
    // 1 / `parts` of what is left, and `at_least` so many.
    Shares(std::int64_t items, std::int64_t parts, std::int64_t at_least)
        : items_(items), parts_(parts), at_least_(at_least) {}

    // Whether there was something to take: the items from `begin` on, before `end`.
    bool take(std::int64_t& begin, std::int64_t& end) {
        begin = next_.load(std::memory_order_relaxed);
        do {
            if (begin >= items_) {
                return false;
            }
            end = std::min(items_, begin + std::max(at_least_, (items_ - begin) / parts_));
        } while (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
        return true;
    }

private:
    const std::int64_t items_, parts_, at_least_;
    std::atomic<std::int64_t> next_{0};
};

}  // namespace goldstick
