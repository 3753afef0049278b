#pragma once

#include "worker/rank/kernels/cpu/attention_levels.h"

// The bodies of wider levels on vectors that the compiler splits and tiles that are arrays: their tiling, masks and
// tails are tested on any machine, at the price of a slow run. What they cannot show is that each instruction was
// called rightly.
namespace titan::kernels::testing {

extern const AttentionLevel kAttentionEmulatedAvx512, kAttentionEmulatedAmx;

}  // namespace titan::kernels::testing
