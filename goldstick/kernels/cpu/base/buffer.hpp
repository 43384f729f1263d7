// Uninitialized memory on cache lines, or on large pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace goldstick {

template <typename Value>
class Buffer {
public:
    // What lasts, and is read from front to back, lies on large pages where the system has them.
    explicit Buffer(std::int64_t count, bool lasting = false)
        : bytes_(sizeof(Value) * static_cast<std::size_t>(count)), mapped_(kMaps && lasting && bytes_ >= kPage) {
        data_ = static_cast<Value*>(mapped_ ? map() : ::operator new(bytes_, std::align_val_t{kLine}));
    }
    ~Buffer() { mapped_ ? unmap(data_, kept()) : ::operator delete(data_, std::align_val_t{kLine}); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Value* data() const { return data_; }
    std::int64_t count() const { return static_cast<std::int64_t>(bytes_ / sizeof(Value)); }

private:
    static constexpr std::size_t kLine = 64, kPage = 2u << 20, kSmallPage = 64u << 10;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    static constexpr bool kMaps = true;

    // Pages of its own: those of a heap may have been used before, and are small then.
    void* map() const {
        void* const found =
            mmap(nullptr, kept() + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (found == MAP_FAILED) {
            throw std::bad_alloc();
        }
        auto* const first = static_cast<std::byte*>(found);
        const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(first) % kPage) % kPage;
        unmap(first, before);
        unmap(first + before + kept(), kPage - before);
        madvise(first + before, bytes_ / kPage * kPage, MADV_HUGEPAGE);
        return first + before;
    }
    static void unmap(void* data, std::size_t bytes) {
        if (bytes > 0) {
            munmap(data, bytes);
        }
    }
#else
    static constexpr bool kMaps = false;
    void* map() const { return nullptr; }
    static void unmap(void*, std::size_t) {}
#endif

    std::size_t kept() const { return (bytes_ + kSmallPage - 1) / kSmallPage * kSmallPage; }

    std::size_t bytes_;
    bool mapped_;
    Value* data_;
};

}  // namespace goldstick
