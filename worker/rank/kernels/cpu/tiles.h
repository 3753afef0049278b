#pragma once

#include <stdint.h>

#include "worker/rank/kernels/cpu/inline.h"

// AMX tiles: eight registers of 16 rows of 64 bytes. They are written as assembly because GCC 12's intrinsics do not
// declare what they read, so that a store before them may come too late.
namespace titan::kernels::TITAN_LEVEL {
namespace {

// Configures all tiles at full size, for this thread.
TITAN_INLINE void tiles_configure() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shape;
  asm volatile("ldtilecfg %0" ::"m"(shape) : "memory");
}
TITAN_INLINE void tiles_release() { asm volatile("tilerelease" ::: "memory"); }

// Keeps the tiles configured while it lives.
class TileSession {
 public:
  [[gnu::always_inline]] TileSession() { tiles_configure(); }
  [[gnu::always_inline]] ~TileSession() { tiles_release(); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

template <int tile>
TITAN_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
// Row r is at base + r * stride, in bytes.
template <int tile>
TITAN_INLINE void tile_load(const void* base, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
TITAN_INLINE void tile_store(void* base, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(stride), "i"(tile) : "memory");
}
// sum [16 x 16 fp32] += a [16 x 32 bf16] times b [16 pairs x 16 columns of bf16].
template <int sum, int a, int b>
TITAN_INLINE void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
