// Compiles the bodies of all row operations for AVX-512 in one file, because the intrinsics' header takes most of the
// compile time.
#include "worker/rank/kernels/cpu/cross_entropy_body.h"
#include "worker/rank/kernels/cpu/expert_rows_body.h"
#include "worker/rank/kernels/cpu/flat_body.h"
#include "worker/rank/kernels/cpu/low_bit_adam_body.h"
#include "worker/rank/kernels/cpu/rms_norm_body.h"
#include "worker/rank/kernels/cpu/rope_body.h"
#include "worker/rank/kernels/cpu/router_body.h"
#include "worker/rank/kernels/cpu/swiglu_body.h"
