// Shares rows and tokens out among threads.
#include "linear/linear.hpp"

#include "base/floats.hpp"
#include "base/work_queue.hpp"
#include "linear/linear_work.hpp"

namespace goldstick {

namespace {

constexpr std::int64_t kQuantizedAlone = 16, kNeighbours = 64;

// Whether the activations were such as could be multiplied in this way.
template <typename T>
bool multiply(const LinearCall<T>& call, int threads, const LinearWork<T>& work) {
    const Plan& plan = work.plan();
    std::int64_t exceeding = 0;
    // One thread alone is done with few tokens before another is there.
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : exceeding) \
    if (threads > 1 && call.tokens > kQuantizedAlone)
    for (std::int64_t first = 0; first < call.tokens; first += plan.tile) {
        exceeding += work.round_tile(first);
    }
    if (work.exceeds(exceeding)) {
        return false;
    }
    // Of few tokens a thread takes half of its part of what is left: neighbours, whose memory is called for ahead.
    WorkQueue shares(work.items(), plan.few ? 2 : call.tokens <= kNeighbours ? 4 : 1, plan.few ? 2 * threads : 0);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const typename LinearWork<T>::Scratch scratch(work);
        for (std::int64_t item = 0, stop = 0; item < stop || shares.take(item, stop); ++item) {
            work.run(item, scratch);
        }
    }
    return true;
}

}  // namespace

template <typename T>
void quantized_linear(const LinearCall<T>& call, int threads, Isa isa) {
    if (!multiply(call, threads, LinearWork<T>(call, threads, isa))) {
        multiply(call, threads, LinearWork<T>(call, threads, isa, false));
    }
}

template void quantized_linear<float>(const LinearCall<float>&, int, Isa);
template void quantized_linear<bfloat16>(const LinearCall<bfloat16>&, int, Isa);
template void quantized_linear<float16>(const LinearCall<float16>&, int, Isa);

}  // namespace goldstick
