// Functions that are compiled into their callers, and so for the instructions of each of them.
#pragma once

#if defined(__GNUC__)
#define GOLDSTICK_INLINE inline __attribute__((always_inline))
#else
#define GOLDSTICK_INLINE inline
#endif
