#pragma once

#include <optional>
#include <string_view>

namespace titan::kernels {

// What a processor can do, as far as Titan's own kernels tell machines apart; a machine has all levels up to its best.
enum class Level {
  kAvx2,        // AVX2, FMA, F16C.
  kAvx512,      // And AVX-512 F, BW, VL, DQ; no products of bf16.
  kAvx512Bf16,  // And AVX-512 BF16: sums of products of two bf16.
  kAmx,         // And AMX tiles of bf16, and the kernel's leave to use them.
};

// This machine's best level, none below AVX2. The first call asks the operating system for the tiles, once a process.
std::optional<Level> best_level();

std::string_view name(Level level);                          // "avx2", "avx512", "avx512bf16", "amx"
std::optional<Level> level_named(std::string_view written);  // None: no level has this name.

}  // namespace titan::kernels
