// Uninitialized memory on cache lines, or on large pages.
#pragma once

#include <cstdint>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace goldstick {

template <typename Value>
class Buffer {
public:
    explicit Buffer(std::int64_t count, bool lasting = false)
        : bytes_(sizeof(Value) * static_cast<std::size_t>(count)),
          align_(lasting && bytes_ >= kPage ? kPage : kLine),
          data_(static_cast<Value*>(::operator new(bytes_, std::align_val_t{align_}))) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (align_ == kPage) {
            madvise(data_, bytes_ / kPage * kPage, MADV_HUGEPAGE);  // what is read from front to back needs fewer entries
        }
#endif
    }
    ~Buffer() { ::operator delete(data_, std::align_val_t{align_}); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Value* data() const { return data_; }

private:
    static constexpr std::size_t kLine = 64, kPage = 2u << 20;
    std::size_t bytes_, align_;
    Value* data_;
};

}  // namespace goldstick
