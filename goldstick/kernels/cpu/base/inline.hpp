// How a function is compiled: into its callers, and so for the instructions of each of them; or for AVX2, for F16C, which
// turns halves into floats, and for FMA, which came with it. The compiler fuses nothing by itself: see CMakeLists.txt.
#pragma once

#if defined(__GNUC__)
#define GOLDSTICK_INLINE inline __attribute__((always_inline))
#define GOLDSTICK_RESTRICT __restrict__  // nothing else is read or written where this points to
#define GOLDSTICK_UNROLL _Pragma("GCC unroll 16")  // whole: sums in an array stay in registers only then
#else
#define GOLDSTICK_INLINE inline
#define GOLDSTICK_RESTRICT
#define GOLDSTICK_UNROLL
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define GOLDSTICK_AVX2 __attribute__((target("avx2,f16c,fma")))
#else
#define GOLDSTICK_AVX2
#endif
