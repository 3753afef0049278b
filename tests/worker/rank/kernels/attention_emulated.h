#pragma once

#include "worker/rank/kernels/cpu/attention_levels.h"

// The bodies of wider levels on vectors that the compiler splits and tiles that are arrays: their tiling, masks and
// tails are tested on any machine, though slowly. They cannot show whether each instruction is used correctly.
namespace titan::kernels::testing {

extern const AttentionLevel kAttentionEmulatedAvx512, kAttentionEmulatedAmx;

}  // namespace titan::kernels::testing
