#pragma once

// Defines the name of the level that a file is compiled for, and functions that leave no out-of-line copy. Tests that
// emulate a level on another one define the name first.
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
