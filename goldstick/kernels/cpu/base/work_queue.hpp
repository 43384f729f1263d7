// Items handed out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace goldstick {

// Neighbouring items for whichever thread asks: always as many, or a share of what is left, which is many at first and
// few at last, so that all threads are done at once.
class WorkQueue {
public:
    // `at_least` so many each time, and where `parts` are given, 1 / `parts` of what is left.
    WorkQueue(std::int64_t items, std::int64_t at_least, std::int64_t parts = 0)
        : items_(items), at_least_(at_least), parts_(parts) {}

    // Whether there was something to take: the items from `begin` on, before `end`.
    bool take(std::int64_t& begin, std::int64_t& end) {
        begin = next_.load(std::memory_order_relaxed);
        do {
            if (begin >= items_) {
                return false;
            }
            end = std::min(items_, begin + std::max(at_least_, parts_ ? (items_ - begin) / parts_ : 0));
        } while (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
        return true;
    }

private:
    const std::int64_t items_, at_least_, parts_;
    std::atomic<std::int64_t> next_{0};
};

}  // namespace goldstick
