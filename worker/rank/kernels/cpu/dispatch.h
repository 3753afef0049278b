#pragma once

#include "worker/rank/kernels/level.h"

// Defines `bool op(Level, const Args&)` over the bodies that OP_body.h defines for each level. An overload of
// accepted(Args) must be visible: it decides before anything is written. Row operations gain nothing from products of
// bf16 and tiles, so the levels above AVX-512 use its bodies.
#define TITAN_ROW_OP(op, Args)                                 \
  namespace avx2 {                                             \
  void op(const Args& args);                                   \
  }                                                            \
  namespace avx512 {                                           \
  void op(const Args& args);                                   \
  }                                                            \
  bool op(Level level, const Args& args) {                     \
    if (!accepted(args)) return false;                         \
    level == Level::kAvx2 ? avx2::op(args) : avx512::op(args); \
    return true;                                               \
  }                                                            \
  static_assert(true)
