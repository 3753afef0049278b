#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/config/job_config.h"
#include "common/models/model_spec.h"
#include "common/pipeline/schedule.h"
#include "worker/comm/ledger.h"

// A few training steps of a small model on any mesh, ranks as threads of this process, through the same code as
// titan-rank: what every mesh has to agree on, and what each rank did for it.
namespace titan::testing {

struct MeshJob {
  models::ModelSpec spec;
  config::JobConfig config;  // parallelism, activation_checkpoint, debug, training.{seq_len, dtype, local_batch_size}
  int world = 1;
  int64_t global_batch = 8;
  int steps = 5;
  // Told of every piece of work of a rank before it begins, with the bytes that the rank allocated since the step
  // began and still holds. May be empty.
  std::function<void(int rank, const pipeline::Action&, int64_t live)> begins;
};

// This rank's piece of a parameter, or of its gradient.
struct Piece {
  std::vector<int64_t> offset;
  at::Tensor value;
};

struct RankRecord {
  std::map<std::string, Piece> initial;
  std::vector<double> losses;  // Of each step, over all ranks.
  std::vector<double> norms;
  std::map<std::string, Piece> gradients;  // Of the first step.
  std::map<std::string, Piece> values;     // At the end.
  std::map<std::string, at::Tensor> buffers;
  // Of the last step's forward and backward passes.
  comm::LedgerCounts traffic;
  int64_t product_flops = 0;
  // Tokens that this rank routed to each expert of a layer in the last step.
  std::map<std::string, std::vector<int64_t>> routed;
  int64_t parameter_bytes = 0;
  int64_t optimizer_bytes = 0;
};

// One record per rank. Throws what the job's configuration is refused with.
std::vector<RankRecord> run_mesh_job(const MeshJob& job);

}  // namespace titan::testing
