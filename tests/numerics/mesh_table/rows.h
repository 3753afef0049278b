#pragma once

#include <string>
#include <vector>

#include "tests/numerics/mesh_table/mesh_job.h"
#include "tests/numerics/small_models/option_specs.h"
#include "tests/numerics/small_models/small_specs.h"

namespace titan::testing {

// One line of the table: a model on a mesh, compared with the same model on one rank.
struct MeshRow {
  std::string name;        // "llama3 fsdp2 tp2"
  std::string covers;      // The corresponding integration test of torchtitan; empty: it has none.
  std::string family;      // Names the spec.
  std::string reference;   // Rows with the same reference share the one-rank run.
  MeshJob job;             // Without a data type.
  bool only_long = false;  // Only in the long form.
};

// Returns all rows, in the table's order.
const std::vector<MeshRow>& mesh_rows();

// Returns the same job on one rank, with the whole batch at once and without recomputation.
MeshJob one_rank(const MeshRow& row);

}  // namespace titan::testing
