#include "worker/rank/kernels/cpu/flat.h"

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {

namespace {

// The operations over flat buffers accept every size and alignment.
bool accepted(const CastRows&) { return true; }
bool accepted(const SquaredNorm&) { return true; }
bool accepted(const Adam&) { return true; }

}  // namespace

TITAN_ROW_OP(cast_rows, CastRows);
TITAN_ROW_OP(squared_norm, SquaredNorm);
TITAN_ROW_OP(adam, Adam);

}  // namespace titan::kernels
