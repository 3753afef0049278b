#include "worker/rank/kernels/cpu/gemm_body.h"
