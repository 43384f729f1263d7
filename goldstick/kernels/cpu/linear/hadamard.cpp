// Hadamard transforms: the choice of instructions, shares of blocks for threads, and the transform one float at a time.
#include "linear/hadamard.hpp"

#include <algorithm>

#include "base/buffer.hpp"
#include "base/floats.hpp"
#include "base/inline.hpp"

#define GOLDSTICK_HERE

namespace goldstick {
namespace {

struct Lanes {
    static constexpr int kCount = 1;
    float lane;

    template <typename T>
    static Lanes load(const T* from) {
        return {to_float(*from)};
    }
    template <typename T>
    void store(T* to) const {
        goldstick::store(to, round_to<T>(lane));
    }
    static Lanes plus(const Lanes& a, const Lanes& b) { return {a.lane + b.lane}; }
    static Lanes minus(const Lanes& a, const Lanes& b) { return {a.lane - b.lane}; }
    Lanes times(float factor) const { return {lane * factor}; }
    Lanes within() const { return *this; }
};

}  // namespace
}  // namespace goldstick

#include "linear/hadamard_blocks.hpp"

namespace goldstick {

template <typename T>
void hadamard_scalar(const Hadamard<T>& call, float* buffer) {
    transform_all(call, buffer);
}

template <typename T>
void hadamard(const Hadamard<T>& call, int threads, Isa isa) {
    const auto run = isa >= Isa::kAvx512 && call.size >= 16 ? hadamard_avx512<T>
                     : isa >= Isa::kAvx2                    ? hadamard_avx2<T>
                                                            : hadamard_scalar<T>;
    const std::int64_t shares = std::max<std::int64_t>(std::min<std::int64_t>(threads, call.blocks), 1);
    const Buffer<float> buffers(shares * call.size);
#pragma omp parallel for num_threads(static_cast<int>(shares)) schedule(static) if (shares > 1)
    for (std::int64_t share = 0; share < shares; ++share) {
        const std::int64_t first = call.blocks * share / shares, last = call.blocks * (share + 1) / shares;
        const std::int64_t at = first * call.size;
        run({call.x + at, call.y + at, last - first, call.size}, buffers.data() + share * call.size);
    }
}

template void hadamard_scalar(const Hadamard<float>&, float*);
template void hadamard_scalar(const Hadamard<bfloat16>&, float*);
template void hadamard_scalar(const Hadamard<float16>&, float*);
template void hadamard(const Hadamard<float>&, int, Isa);
template void hadamard(const Hadamard<bfloat16>&, int, Isa);
template void hadamard(const Hadamard<float16>&, int, Isa);

}  // namespace goldstick
