#pragma once

#include <optional>
#include <string_view>

namespace titan::kernels {

// Instruction sets that Titan's own kernels distinguish. A machine has all levels up to its best.
enum class Level {
  kAvx2,        // AVX2, FMA and F16C.
  kAvx512,      // Adds AVX-512 F, BW, VL and DQ, without products of bf16.
  kAvx512Bf16,  // Adds AVX-512 BF16: sums of products of two bf16.
  kAmx,         // Adds AMX tiles of bf16, with the operating system's permission to use them.
};

// Returns this machine's best level, or nothing below AVX2. The first call of a process requests the tiles from the
// operating system.
std::optional<Level> best_level();

std::string_view name(Level level);                          // "avx2", "avx512", "avx512bf16", "amx"
std::optional<Level> level_named(std::string_view written);  // Empty for an unknown name.

}  // namespace titan::kernels
