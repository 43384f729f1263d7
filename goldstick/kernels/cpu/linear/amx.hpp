// AMX's matrices: eight registers of up to 16 rows of 64 bytes.
#pragma once

#include <cstdint>

#include "linear/linear.hpp"

#if defined(GOLDSTICK_HAS_AMX)

#define GOLDSTICK_AMX __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512vnni")))

namespace goldstick {
namespace {

constexpr int kSums = 4;                         // registers 0 to 3
constexpr int kCodes[] = {6, 7}, kActivations[] = {4, 5};
constexpr std::int64_t kTokensOfMatrix = kTile512;

// How large the matrices in the registers are, for `steps` of four columns.
struct alignas(64) Shapes {
    std::uint8_t palette = 1, start = 0, unused[14]{};
    std::uint16_t row_bytes[16]{};
    std::uint8_t rows[16]{};

    explicit Shapes(std::int64_t steps) {
        for (int i = 0; i < kSums; ++i) {
            row_bytes[i] = kRows * 4, rows[i] = kTokensOfMatrix;
        }
        for (const int i : kActivations) {
            row_bytes[i] = static_cast<std::uint16_t>(steps * 4), rows[i] = kTokensOfMatrix;
        }
        for (const int i : kCodes) {
            row_bytes[i] = kRows * 4, rows[i] = static_cast<std::uint8_t>(steps);
        }
    }
};

GOLDSTICK_AMX inline void configure(const Shapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
GOLDSTICK_AMX inline void release() { asm volatile("tilerelease"); }

// Rows lie `stride` bytes apart.
template <int to>
GOLDSTICK_AMX inline void load(const std::int32_t* from, std::int64_t stride) {
    asm volatile("tileloadd (%0, %1, 1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(to) : "memory");
}
template <int from>
GOLDSTICK_AMX inline void store(std::int32_t* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0, %1, 1)" : : "r"(to), "r"(stride), "i"(from) : "memory");
}
template <int sums>
GOLDSTICK_AMX inline void clear() {
    asm volatile("tilezero %%tmm%c0" : : "i"(sums));
}

// sums += activations · codes; activations have a sign.
template <int sums, int activations, int codes>
GOLDSTICK_AMX inline void multiply_matrix() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(activations), "i"(codes));
}

}  // namespace
}  // namespace goldstick

#endif
