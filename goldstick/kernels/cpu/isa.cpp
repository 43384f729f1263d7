#include "isa.hpp"

#include <cstdlib>
#include <stdexcept>

#include "dequantize.hpp"

namespace goldstick {

Isa best_isa() {
    if (!has_avx2()) {
        return Isa::kScalar;
    }
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni")) {
        return Isa::kAvx512;
    }
#endif
    return Isa::kAvx2;
}

Isa chosen_isa() {
    const char* asked = std::getenv("GOLDSTICK_ISA");
    return asked == nullptr || *asked == '\0' ? best_isa() : isa_named(asked, "GOLDSTICK_ISA");
}

std::string name_of(Isa isa) { return isa == Isa::kAvx512 ? "avx512" : isa == Isa::kAvx2 ? "avx2" : "scalar"; }

Isa isa_named(const std::string& name, const std::string& asker) {
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
        if (name != name_of(isa)) {
            continue;
        }
        if (isa > best_isa()) {
            throw std::invalid_argument(asker + " asks for " + name + ", which this processor does not have");
        }
        return isa;
    }
    throw std::invalid_argument(asker + " is '" + name + "'; it can be 'avx512', 'avx2' or 'scalar'");
}

}  // namespace goldstick
