#include "worker/rank/kernels/level.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace titan::kernels {
namespace {

constexpr Level kLevels[] = {Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16, Level::kAmx};

// Linux lets a process use tile data only after it requested permission (arch/x86/include/uapi/asm/prctl.h). Threads
// inherit the permission.
bool tiles_are_allowed() {
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::optional<Level> find_best_level() {
  // These calls also check that the operating system saves the wide registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!avx2) return std::nullopt;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return Level::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Level::kAvx512;
  const bool amx = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
  return amx && tiles_are_allowed() ? Level::kAmx : Level::kAvx512Bf16;
}

}  // namespace

std::optional<Level> best_level() {
  static const std::optional<Level> best = find_best_level();
  return best;
}

std::string_view name(Level level) {
  switch (level) {
    case Level::kAvx2:
      return "avx2";
    case Level::kAvx512:
      return "avx512";
    case Level::kAvx512Bf16:
      return "avx512bf16";
    case Level::kAmx:
      return "amx";
  }
  __builtin_unreachable();
}

std::optional<Level> level_named(std::string_view written) {
  for (const Level level : kLevels) {
    if (name(level) == written) return level;
  }
  return std::nullopt;
}

}  // namespace titan::kernels
