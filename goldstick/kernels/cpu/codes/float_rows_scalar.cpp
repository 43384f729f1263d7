// Float codes without vector instructions: the same operations, one float after the other.
#include <cmath>

#include "base/inline.hpp"
#include "codes/float_codes.hpp"
#include "codes/float_row_kernels.hpp"

#define GOLDSTICK_HERE

namespace goldstick {
namespace {

constexpr int kSums = 4;  // of sixteen that are added up side by side

struct Sixteen {
    float lanes[16];

    static Sixteen all(float value) {
        Sixteen found;
        for (float& lane : found.lanes) lane = value;
        return found;
    }
    static Sixteen halves(float low, float high) {
        Sixteen found;
        for (int i = 0; i < 16; ++i) found.lanes[i] = i < 8 ? low : high;
        return found;
    }
    static Sixteen zero() { return all(0.0f); }
    static Sixteen load(const float* from) {
        Sixteen found;
        for (int i = 0; i < 16; ++i) found.lanes[i] = from[i];
        return found;
    }
    static Sixteen plus(const Sixteen& a, const Sixteen& b) {
        Sixteen found;
        for (int i = 0; i < 16; ++i) found.lanes[i] = a.lanes[i] + b.lanes[i];
        return found;
    }
    static Sixteen times(const Sixteen& a, const Sixteen& b) {
        Sixteen found;
        for (int i = 0; i < 16; ++i) found.lanes[i] = a.lanes[i] * b.lanes[i];
        return found;
    }
    void store(float* to) const {
        for (int i = 0; i < 16; ++i) to[i] = lanes[i];
    }
    void add_product(const Sixteen& a, const Sixteen& b) {
        for (int i = 0; i < 16; ++i) lanes[i] = std::fma(a.lanes[i], b.lanes[i], lanes[i]);
    }
};

template <int tokens>
constexpr int kParts = 1;

inline void call_ahead(const std::uint8_t*) {}

template <Widening widening>
struct Wide {
    explicit Wide(const FloatCodes& codes) : codes(codes) {}

    Sixteen sixteen(const std::uint8_t* row, std::int64_t column) const {
        Sixteen found;
        for (int i = 0; i < 16; ++i) {
            const unsigned code = float_code(row, column + i, codes.bits);
            found.lanes[i] = codes.table[code] * kShrunk<widening>;
        }
        return found;
    }
    template <int parts, int part, int tokens>
    void add_block(const std::uint8_t* row, std::int64_t column, const float* x, std::int64_t apart,
                   Sixteen (&partial)[tokens][4]) const {
        float values[64];
        for (int i = 0; i < 64; ++i) values[place_in_block(i)] = codes.table[row[column + i]] * kShrunk<widening>;
        for (int k = 0; k < 4; ++k) {
            for (int t = 0; t < tokens; ++t) {
                partial[t][k].add_product(Sixteen::load(values + 16 * k), Sixteen::load(x + t * apart + 16 * k));
            }
        }
    }
    template <int count>
    void look(const std::uint8_t*, std::int64_t) {}
    bool seen_no_number() const { return false; }  // the table has what there is

    const FloatCodes& codes;
};

}  // namespace
}  // namespace goldstick

#include "codes/float_dispatch.hpp"

namespace goldstick {

FloatRowKernels float_rows_scalar(Widening widening) { return kernels_for(widening); }

}  // namespace goldstick
