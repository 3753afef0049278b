#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/nn/loss.h"

namespace titan::model {

// How a model is split over a mesh, beside FSDP and the pipeline, which the runtime does for any model.
struct ParallelOptions {
  const comm::DeviceMesh* mesh = nullptr;      // Must outlive the model; has a group for every axis.
  bool sequence_parallel = true;               // parallelism.enable_sequence_parallel
  bool loss_parallel = true;                   // not parallelism.disable_loss_parallel
  bool async_tensor_parallel = false;          // parallelism.enable_async_tensor_parallel
  bool gather_operands = false;                // Tensor ranks gather what products read (parallel/tensor_operands.h).
  std::string rotate_method = "allgather";     // parallelism.context_parallel_rotate_method
  std::string expert_dispatcher = "alltoall";  // parallelism.expert_parallel_dispatcher
  bool force_load_balance = false;             // debug.moe_force_load_balance
};

// A model is its blocks in order: embedding, layers, norm and head. Parameters have shapes but no values yet.
struct Model {
  std::vector<std::unique_ptr<nn::Block>> blocks;
  nn::Loss loss = nn::cross_entropy_sum;
  // Cuts the parameters and sets the layers' seams for a mesh; called once, before anything holds values. Empty: the
  // model cannot be split. Errors: InvalidArgument (what does not divide), Unimplemented.
  std::function<absl::Status(Model&, const ParallelOptions&)> parallelize;
  // Of the products that parameters name (nn::Parameter::products); none: numbers as they are.
  std::vector<std::shared_ptr<const nn::MatmulRecipe>> recipes;
};

struct BuildOptions {
  int64_t seq_len = 2048;       // Of training's rows: decides what depends on the context's length (YaRN).
  int64_t max_logit_bytes = 0;  // More are computed in parts of the vocabulary, twice; 0: all at once.
  int64_t longest_row = 0;      // That forward() will see, when held-out rows are longer: sizes tables.
};

// Unimplemented names the part of the spec that no code computes yet.
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);

}  // namespace titan::model
