// The blocks that cannot be read where they lie. Eight codes fill `bits` bytes whatever their width, and depositing
// the bits of a 64-bit word spreads them over eight bytes at once.
#include <cstring>

#include "linear/linear.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace goldstick {

namespace {

#if defined(__x86_64__) && defined(__GNUC__)
// `count` whole octets of codes to bytes, from `from` on; the row ends at `end`.
__attribute__((target("bmi2"))) void deposit_octets(const std::uint8_t* from, const std::uint8_t* end, int bits,
                                                    std::int64_t count, std::uint8_t* out) {
    const std::uint64_t places = 0x0101010101010101u * ((1u << bits) - 1u);
    for (std::int64_t i = 0; i < count; ++i, from += bits, out += 8) {
        std::uint64_t octet = 0;
        if (end - from >= 8) {
            std::memcpy(&octet, from, 8);
        } else {
            std::memcpy(&octet, from, static_cast<std::size_t>(bits));
        }
        octet = _pdep_u64(octet, places);
        std::memcpy(out, &octet, 8);
    }
}
#else
void deposit_octets(const std::uint8_t*, const std::uint8_t*, int, std::int64_t, std::uint8_t*) {}
#endif

}  // namespace

unsigned code_at(const std::uint8_t* row, std::int64_t index, int bits) {
    const std::int64_t first_bit = index * bits, byte = first_bit >> 3;
    const int shift = static_cast<int>(first_bit & 7);
    unsigned code = row[byte] >> shift;
    if (shift + bits > 8) {  // the code goes on in the next byte, which the row therefore has
        code |= static_cast<unsigned>(row[byte + 1]) << (8 - shift);
    }
    return code & ((1u << bits) - 1u);
}

bool can_deposit() {
#if defined(__x86_64__) && defined(__GNUC__)
    return __builtin_cpu_supports("bmi2");
#else
    return false;
#endif
}

void copy_block(const Columns& columns, const Chunk& chunk, const std::uint8_t* row, std::int64_t block,
                std::uint8_t* out) {
    const std::int64_t size = columns.block_bytes();
    std::fill_n(out, size, std::uint8_t{0});
    if (columns.direct) {
        const std::int64_t from = chunk.begin * columns.bits / 8 + block * size;
        std::copy(row + from, row + std::min(from + size, columns.row_bytes), out);
        return;
    }
    const std::int64_t begin = chunk.begin + block * columns.block_codes();
    const std::int64_t end = std::min(begin + columns.block_codes(), chunk.end);
    std::int64_t i = begin;
    if (columns.deposit && begin % 8 == 0) {
        const std::int64_t octets = (end - begin) / 8;
        deposit_octets(row + begin / 8 * columns.bits, row + columns.row_bytes, columns.bits, octets, out);
        i += octets * 8;
    }
    for (; i < end; ++i) {
        out[i - begin] = static_cast<std::uint8_t>(code_at(row, i, columns.bits));
    }
    if (columns.coding.is_table) {
        std::transform(out, out + (end - begin), out, [&](std::uint8_t code) { return columns.coding[code]; });
    }
}

}  // namespace goldstick
