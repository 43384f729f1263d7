#include "base/isa.hpp"

#include <cstdlib>
#include <stdexcept>
#if defined(GOLDSTICK_HAS_AMX) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "codes/dequantize.hpp"

namespace goldstick {

namespace {

#if defined(__x86_64__) && defined(__GNUC__)
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#endif

// Whether there are AMX's tiles of 8-bit integers, and the system lets this process use them, which is asked once.
bool may_use_amx() {
#if defined(GOLDSTICK_HAS_AMX) && defined(__linux__)
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;  // of edx
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTile) && (d & kInt8) &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

Isa find_best() {
#if defined(__x86_64__) && defined(__GNUC__)
    if (has_avx2() && has_avx512()) {
        return may_use_amx() ? Isa::kAmx : Isa::kAvx512;
    }
#endif
    return has_avx2() ? Isa::kAvx2 : Isa::kScalar;
}

}  // namespace

Isa best_isa() {
    static const Isa best = find_best();
    return best;
}

Isa chosen_isa() {
    const char* asked = std::getenv("GOLDSTICK_ISA");
    return asked == nullptr || *asked == '\0' ? best_isa() : isa_named(asked, "GOLDSTICK_ISA");
}

namespace {

constexpr struct {
    Isa isa;
    const char* name;
} kNames[] = {{Isa::kScalar, "scalar"}, {Isa::kAvx2, "avx2"}, {Isa::kAvx512, "avx512"}, {Isa::kAmx, "amx"}};

}  // namespace

std::string name_of(Isa isa) { return kNames[static_cast<int>(isa)].name; }

Isa isa_named(const std::string& name, const std::string& asker) {
    for (const auto& known : kNames) {
        if (name != known.name) {
            continue;
        }
        if (known.isa > best_isa()) {
            throw std::invalid_argument(asker + " asks for " + name + ", which this processor does not have");
        }
        return known.isa;
    }
    throw std::invalid_argument(asker + " is '" + name + "'; it can be 'amx', 'avx512', 'avx2' or 'scalar'");
}

}  // namespace goldstick
