#include "worker/kernels/cpu/gemm_body.h"
