#pragma once

#include "worker/rank/kernels/cpu/parts.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

// A factor of a product. Its elements have an outer place (a row or column of the result) and a depth, over which the
// product sums: [outer, depth], or deep: [depth, outer].
struct Operand {
  const uint16_t* data;
  int64_t stride;
  bool deep;
};

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
