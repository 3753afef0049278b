#pragma once

#include "tests/numerics/mesh_table/mesh_job.h"

namespace titan::testing {

// What one rank has to do in one step of a job, from the model's dimensions and the mesh alone (and, where experts are
// dealt over ranks, from the routing: how many tokens every rank sent to every expert).
struct ClosedForm {
  comm::LedgerCounts traffic;   // Collectives of the forward and backward passes.
  int64_t product_flops = 0;    // Of matrix products.
  int64_t parameter_bytes = 0;  // Master weights.
  int64_t optimizer_bytes = 0;  // Both of Adam's moments.
};

// `records`: of all ranks, read for `routed` only.
ClosedForm closed_form(const MeshJob& job, int rank, const std::vector<RankRecord>& records);

}  // namespace titan::testing
