// Outputs of dense convolutions, channel by channel, with AVX-512: sums of sixteen channels and sixteen pixels are
// finished, turned over in registers, and written.
#include "convolution/outputs_avx512.hpp"
#include "convolution/past_caches.hpp"
#include "linear/avx512.hpp"

#if defined(__x86_64__)
#include <algorithm>
#include <cstdint>

namespace goldstick {
namespace {

// Rows to columns: four times, what lies at twice the distance is interleaved.
GOLDSTICK_AVX512 GOLDSTICK_INLINE void turn_sixteen(__m512 (&a)[16]) {
    __m512 b[16];
    GOLDSTICK_UNROLL
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    GOLDSTICK_UNROLL
    for (int i = 0; i < 16; i += 4) {
        GOLDSTICK_UNROLL
        for (int j = 0; j < 2; ++j) {
            const __m512d low = _mm512_castps_pd(b[i + j]), high = _mm512_castps_pd(b[i + j + 2]);
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    // a[4 i + c] holds of the rows 4 i … 4 i + 3 the columns c, c + 4, c + 8 and c + 12.
    GOLDSTICK_UNROLL
    for (int c = 0; c < 4; ++c) {
        const __m512 even = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88), odd = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
        const __m512 later = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
        const __m512 last = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
        b[c] = _mm512_shuffle_f32x4(even, later, 0x88), b[8 + c] = _mm512_shuffle_f32x4(even, later, 0xdd);
        b[4 + c] = _mm512_shuffle_f32x4(odd, last, 0x88), b[12 + c] = _mm512_shuffle_f32x4(odd, last, 0xdd);
    }
    GOLDSTICK_UNROLL
    for (int i = 0; i < 16; ++i) {
        a[i] = b[i];
    }
}

}  // namespace

GOLDSTICK_AVX512 void write_planes_avx512(const Sums& sums, const Finish& finish, std::int64_t pixels, float* y) {
    const __m512 by = _mm512_loadu_ps(finish.by), shift = _mm512_loadu_ps(finish.shift);
    const __m512 least = _mm512_set1_ps(finish.least), most = _mm512_set1_ps(finish.most);
    for (std::int64_t first = 0; first < sums.count; first += 16) {
        const std::int64_t count = std::min<std::int64_t>(16, sums.count - first);
        __m512 a[16];
        GOLDSTICK_UNROLL
        for (int t = 0; t < 16; ++t) {  // there is room for whole tiles; what is there need not be a number
            const __m512 value = _mm512_loadu_ps(sums.values + (first + t) * kRows);
            const __m512 found = _mm512_add_ps(_mm512_mul_ps(value, by), shift);
            a[t] = _mm512_min_ps(most, _mm512_max_ps(least, found));  // what is no number, given last, stays
        }
        turn_sixteen(a);
        const __mmask16 some = static_cast<__mmask16>((1u << count) - 1);
        GOLDSTICK_UNROLL
        for (int r = 0; r < 16; ++r) {
            if (r >= sums.channels) {
                break;
            }
            float* const to = y + r * pixels + first;
            if (count < 16) {
                _mm512_mask_storeu_ps(to, some, a[r]);
            } else if (finish.past_caches && on_a_line(to)) {
                _mm512_stream_ps(to, a[r]);
            } else {
                _mm512_storeu_ps(to, a[r]);
            }
        }
    }
}

}  // namespace goldstick

#endif
