#pragma once

// Runs a checkpoint's model on a few ranks of one process, which split its matrices.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/generate/generator.h"
#include "worker/rank/model/objective.h"
#include "worker/rank/runtime/engine/sharded_model.h"
#include "worker/rank/tools/generate/source.h"

namespace titan::tools {

struct RankOptions {
  std::string device = "cpu";         // Or "cuda": rank N uses GPU N.
  at::ScalarType dtype = at::kFloat;  // Type of weights and activations.
  int tensor_ranks = 1;               // Threads of this process.
  int threads = 0;                    // CPU threads of all ranks together. 0: one per core.
  int64_t longest_row = 0;            // Tokens of the longest prompt and its continuation.
};

// The model of one rank.
class RankModel {
 public:
  // Builds the model and reads this rank's slices of its weights. Collective. Errors: those of the checkpoint and the
  // mesh.
  static absl::StatusOr<std::unique_ptr<RankModel>> load(storage::Files& files, const ModelSource& source,
                                                         const RankOptions& options, device::Device& device,
                                                         const comm::DeviceMesh& mesh);

  // Continues the prompts' token ids. `options`: without the settings that follow from the ranks. Collective; the
  // result is the same on every rank.
  std::vector<generate::Generation> generate(const std::vector<std::vector<int64_t>>& prompts,
                                             generate::GeneratorOptions options);

  // The model as an objective makes samples of it.
  model::WholeModel whole();

 private:
  RankModel(const comm::DeviceMesh& mesh, int64_t vocabulary) : mesh_(mesh), vocabulary_(vocabulary) {}

  const comm::DeviceMesh& mesh_;
  const int64_t vocabulary_;
  std::unique_ptr<runtime::ShardedModel> model_;
};

// Runs `body` once per rank, all concurrently and each on a new thread. Returns the first error that is not just the
// loss of another rank, or such a loss if there is no other error.
absl::Status run_ranks(const RankOptions& options,
                       const std::function<absl::Status(device::Device&, const comm::DeviceMesh&)>& body);

}  // namespace titan::tools
