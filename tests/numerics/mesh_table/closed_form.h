#pragma once

#include "tests/numerics/mesh_table/rank_share.h"

namespace titan::testing {

// Work and memory of one rank in one step of a job, derived only from the model's dimensions, the mesh and the
// schedule, and, for experts, from the number of tokens that every rank sent to every expert.
struct ClosedForm {
  comm::LedgerCounts traffic;  // Collectives of the forward and backward passes.
  int64_t product_flops = 0;   // FLOPs of matrix products.
  // FLOPs of attention kernels. For each block of tokens a kernel gets the queries that see one of its keys, and the
  // keys that they see. All pairs of these count, including those that the mask hides. A block that the mask hides
  // completely does not count: another document or chunk, one outside the window, or a later part of the row on another
  // rank.
  int64_t attention_flops = 0;
  int64_t parameter_bytes = 0;  // Master weights.
  int64_t optimizer_bytes = 0;  // Both of Adam's moments.
  // Before each piece of the rank's work: bytes in addition to those that it holds between steps.
  std::vector<int64_t> held;
};

// `records` of all ranks give the routing and the choices of a memory budget.
ClosedForm closed_form(const MeshJob& job, int rank, const std::vector<RankRecord>& records);

comm::LedgerCounts traffic_of(const RankShare& share);
std::vector<int64_t> resident_bytes_of(const RankShare& share);

}  // namespace titan::testing
