// The products of pairs of bf16, on vectors of AVX2 and by its multiply-adds.
#define TITAN_LEVEL played_dots
#define TITAN_EMULATED_DOTS
#include "worker/rank/kernels/cpu/gemm_body.h"
