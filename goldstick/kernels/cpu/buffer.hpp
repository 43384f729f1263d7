// Uninitialized memory on cache lines.
#pragma once

#include <cstdint>
#include <new>

namespace goldstick {

template <typename Value>
class Buffer {
public:
    explicit Buffer(std::int64_t count)
        : data_(static_cast<Value*>(::operator new(sizeof(Value) * static_cast<std::size_t>(count), kLine))) {}
    ~Buffer() { ::operator delete(data_, kLine); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Value* data() const { return data_; }

private:
    static constexpr std::align_val_t kLine{64};
    Value* data_;
};

}  // namespace goldstick
