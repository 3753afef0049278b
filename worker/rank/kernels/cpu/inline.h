#pragma once

// For all that is compiled for one level: its name, and functions that leave no copy of their own. Tests that play a
// level on another one give a name before.
#if defined(TITAN_LEVEL)
#elif defined(__AMX_BF16__)
#define TITAN_LEVEL amx
#elif defined(__AVX512BF16__)
#define TITAN_LEVEL avx512bf16
#elif defined(__AVX512F__)
#define TITAN_LEVEL avx512
#else
#define TITAN_LEVEL avx2
#endif
#define TITAN_INLINE inline __attribute__((always_inline))
