// Emulates the products of pairs of bf16 with AVX2 vectors and multiply-adds.
#define TITAN_LEVEL emulated_dots
#define TITAN_EMULATED_DOTS
#include "worker/rank/kernels/cpu/gemm_body.h"
