#pragma once

#include "worker/rank/kernels/cpu/attention_levels.h"

// The bodies of wider levels, run on vectors that the compiler splits and on tiles that are arrays. So any machine
// tests their tiling, masks and tails, though slowly. These tests cannot show whether each instruction is used
// correctly.
namespace titan::kernels::testing {

extern const AttentionLevel kAttentionEmulatedAvx512, kAttentionEmulatedAmx;

}  // namespace titan::kernels::testing
