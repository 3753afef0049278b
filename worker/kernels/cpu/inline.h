#pragma once

// For all that is compiled for one level: its name, and functions that leave no copy of their own.
#if defined(__AMX_BF16__)
#define TITAN_LEVEL amx
#elif defined(__AVX512F__)
#define TITAN_LEVEL avx512
#else
#define TITAN_LEVEL avx2
#endif
#define TITAN_INLINE inline __attribute__((always_inline))
