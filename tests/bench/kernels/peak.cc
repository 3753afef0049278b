#include "tests/bench/kernels/peak.h"

#include <algorithm>
#include <chrono>

namespace titan::kernels::bench {
namespace {

constexpr int kRounds = 200'000;

// The instructions are written as assembly, so that this file needs no compiler flags of a level. Twelve independent
// sums hide the latency.
#define TITAN_TWELVE(reg)                                                                                 \
  "vfmadd231ps %%" reg "12, %%" reg "13, %%" reg "0\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg      \
  "1\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg "2\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg \
  "3\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg "4\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg \
  "5\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg "6\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg \
  "7\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg "8\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg \
  "9\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg "10\n\tvfmadd231ps %%" reg "12, %%" reg "13, %%" reg "11\n\t"

#define TITAN_VECTORS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13"

void multiply_add_avx2() {
  asm volatile("vzeroall" ::: TITAN_VECTORS);
  for (int i = 0; i < kRounds; ++i) asm volatile(TITAN_TWELVE("ymm")::: TITAN_VECTORS);
  asm volatile("vzeroupper" ::: TITAN_VECTORS);
}

void multiply_add_avx512() {
  asm volatile("vzeroall" ::: TITAN_VECTORS);
  for (int i = 0; i < kRounds; ++i) asm volatile(TITAN_TWELVE("zmm")::: TITAN_VECTORS);
  asm volatile("vzeroupper" ::: TITAN_VECTORS);
}

void multiply_tiles() {
  struct alignas(64) {
    unsigned char palette = 1, reserved[15] = {};
    unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("ldtilecfg %0" ::"m"(config));
  for (int i = 0; i < kRounds / 10; ++i) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
}

template <typename Loop>
double best_gflops(double flops, const Loop& loop) {
  double best = 0;
  for (int i = 0; i < 10; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    loop();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    best = std::max(best, flops * 1e-9 / spent.count());
  }
  return best;
}

}  // namespace

double peak_gflops(Level level) {
  static const double avx2 = best_gflops(12.0 * 8 * 2 * kRounds, multiply_add_avx2);
  if (level == Level::kAvx2) return avx2;
  static const double avx512 = best_gflops(12.0 * 16 * 2 * kRounds, multiply_add_avx512);
  if (level == Level::kAvx512) return avx512;
  static const double amx = best_gflops(4.0 * 16 * 16 * 32 * 2 * (kRounds / 10.0), multiply_tiles);
  return amx;
}

}  // namespace titan::kernels::bench
