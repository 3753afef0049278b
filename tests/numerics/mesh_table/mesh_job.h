#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/comm/ledger.h"
#include "worker/rank/device/device.h"

// A few training steps of a small model on any mesh, with ranks as threads of this process, through the same code as
// titan-rank. Records the results that every mesh must agree on, and the work of each rank.
namespace titan::testing {

struct MeshJob {
  models::ModelSpec spec;
  // Only parallelism, encoder.max_t5_encoding_len, activation_checkpoint, debug, training and
  // optimizer.early_step_in_backward are read.
  config::JobConfig config;
  int world = 1;
  int64_t global_batch = 8;
  int steps = 5;
  // Changes initial values element by element, so that a rank's piece equals that of the whole; may be empty.
  std::function<void(at::Tensor&)> start_from;
  // Wraps a rank's device in another one; may be empty.
  std::function<std::unique_ptr<device::Device>(int rank, std::unique_ptr<device::Device>)> device;
};

// This rank's piece of a parameter, or of its gradient.
struct Piece {
  std::vector<int64_t> offset;
  at::Tensor value;
};

struct RankRecord {
  std::map<std::string, Piece> initial;
  std::vector<double> losses;  // Loss of each step, over all ranks.
  std::vector<double> norms;
  std::map<std::string, Piece> gradients;  // Gradients of the first step.
  std::map<std::string, Piece> values;     // Values at the end.
  std::map<std::string, at::Tensor> buffers;
  // Figures of the last step's forward and backward passes.
  comm::LedgerCounts traffic;
  int64_t product_flops = 0;
  int64_t attention_flops = 0;
  // Before each piece of work of the last step, in order: bytes that the rank allocated since the step began and still
  // holds.
  std::vector<int64_t> held;
  // Tokens of each microbatch of the last step that this rank routed to each expert of a layer.
  std::map<std::string, std::vector<std::vector<int64_t>>> routed;
  // For each layer, in the order of its calls, whether a memory budget saves the result.
  std::map<std::string, std::vector<bool>> planned;
  int64_t parameter_bytes = 0;
  int64_t optimizer_bytes = 0;
};

// Returns all tokens of one step of a language model and, at the end of each row, the last label: int64 [global_batch,
// seq_len + 1].
at::Tensor tokens_of_step(const MeshJob& job, int step);

// Returns one record per rank. Throws the message if the job's configuration is invalid.
std::vector<RankRecord> run_mesh_job(const MeshJob& job);

}  // namespace titan::testing
