#pragma once

#include "tests/numerics/mesh_table/rank_share.h"

namespace titan::testing {

// What one rank has to do and to hold in one step of a job, from the model's dimensions, the mesh and the schedule
// alone (and, where experts are dealt over ranks, from the routing: how many tokens every rank sent to every expert).
struct ClosedForm {
  comm::LedgerCounts traffic;  // Collectives of the forward and backward passes.
  int64_t product_flops = 0;   // Of matrix products.
  // Of attention kernels. A kernel gets the queries that see a key of a block of tokens, and the keys that they see;
  // all of that rectangle counts, also what the mask hides inside it. No block counts that is hidden as a whole: of
  // another document or chunk, out of the window, or in the future, in parts of the row that lie on other ranks.
  int64_t attention_flops = 0;
  int64_t parameter_bytes = 0;  // Master weights.
  int64_t optimizer_bytes = 0;  // Both of Adam's moments.
  // Bytes above those that the rank holds between steps, before each piece of its work.
  std::vector<int64_t> held;
};

// `records`: of all ranks, read for the routing and for what a memory budget chose.
ClosedForm closed_form(const MeshJob& job, int rank, const std::vector<RankRecord>& records);

comm::LedgerCounts traffic_of(const RankShare& share);
int64_t product_flops_of(const RankShare& share);
int64_t attention_flops_of(const RankShare& share);
std::vector<int64_t> held_bytes_of(const RankShare& share);

}  // namespace titan::testing
