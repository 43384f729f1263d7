// How a function is compiled: into its callers, and so for the instructions of each of them; or for AVX2, and for F16C,
// which is older and turns halves into floats.
#pragma once

#if defined(__GNUC__)
#define GOLDSTICK_INLINE inline __attribute__((always_inline))
#define GOLDSTICK_RESTRICT __restrict__  // nothing else is read or written where this points to
#else
#define GOLDSTICK_INLINE inline
#define GOLDSTICK_RESTRICT
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define GOLDSTICK_AVX2 __attribute__((target("avx2,f16c")))
#else
#define GOLDSTICK_AVX2
#endif
