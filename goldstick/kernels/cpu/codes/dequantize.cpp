// Rows are independent: they are shared out among threads, and each goes through its groups one after the other.
#include "codes/dequantize.hpp"

#include <algorithm>

namespace goldstick {

template <typename T>
void dequantize_scalar(const Segment<T>& segment, int bits, std::int64_t begin, std::int64_t end) {
    const unsigned mask = (1u << bits) - 1u;
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first_bit = i * bits;
        const std::int64_t byte = first_bit >> 3;
        const int shift = static_cast<int>(first_bit & 7);
        unsigned code = segment.stream[byte] >> shift;
        if (shift + bits > 8) {  // the code goes on in the next byte, which the row therefore has
            code |= static_cast<unsigned>(segment.stream[byte + 1]) << (8 - shift);
        }
        const float centred = round_to<T>(static_cast<float>(code & mask) - segment.zero);
        store(segment.out + i, round_to<T>(centred * segment.scale - segment.minimum));
    }
}

template <typename T>
static void dequantize_row(const Matrix<T>& matrix, std::int64_t row, bool use_avx2) {
    Segment<T> segment;
    segment.stream = reinterpret_cast<const std::uint8_t*>(matrix.packed + row * matrix.width);
    segment.stream_bytes = matrix.width * 4;
    segment.out = matrix.out + row * matrix.columns;
    const float middle = static_cast<float>(1 << (matrix.bits - 1));
    for (std::int64_t group = 0; group < matrix.groups; ++group) {
        const std::int64_t at = row * matrix.groups + group;
        segment.begin = group * matrix.group_size;
        segment.end = std::min(segment.begin + matrix.group_size, matrix.columns);
        segment.scale = to_float(matrix.scale[at]);
        segment.zero = matrix.zero ? to_float(matrix.zero[at]) : middle;
        segment.minimum = 0.0f;
        if (matrix.units) {
            const std::int64_t superblock = group / (matrix.groups / matrix.superblocks);
            const float* const unit = matrix.units + row * (matrix.zero ? 2 : 1) * matrix.superblocks + superblock;
            segment.scale *= *unit;
            if (matrix.zero) {
                segment.minimum = segment.zero * unit[matrix.superblocks];
                segment.zero = 0.0f;
            }
        }
        const std::int64_t rest = use_avx2 ? dequantize_avx2(segment, matrix.bits) : segment.begin;
        dequantize_scalar(segment, matrix.bits, rest, segment.end);
    }
}

template <typename T>
void dequantize_matrix(const Matrix<T>& matrix, int threads, bool use_avx2) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
        dequantize_row(matrix, row, use_avx2);
    }
}

bool has_avx2() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

template void dequantize_matrix<float>(const Matrix<float>&, int, bool);
template void dequantize_matrix<bfloat16>(const Matrix<bfloat16>&, int, bool);
template void dequantize_matrix<float16>(const Matrix<float16>&, int, bool);

}  // namespace goldstick
