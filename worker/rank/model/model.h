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

// How a model is split over a mesh, apart from FSDP and the pipeline, which the runtime applies to any model.
struct ParallelOptions {
  const comm::DeviceMesh* mesh = nullptr;   // Must outlive the model. Has a group for every axis.
  bool sequence_parallel = true;            // parallelism.enable_sequence_parallel
  bool loss_parallel = true;                // Inverse of parallelism.disable_loss_parallel.
  bool async_tensor_parallel = false;       // parallelism.enable_async_tensor_parallel
  bool gather_operands = false;             // Tensor ranks gather the operands of matmuls (parallel/tensor_operands.h).
  std::string rotate_method = "allgather";  // parallelism.context_parallel_rotate_method
  std::string expert_dispatcher = "alltoall";  // parallelism.expert_parallel_dispatcher
  bool force_load_balance = false;             // debug.moe_force_load_balance
};

// A model is its blocks in order, such as embedding, layers, norm and head, what goes into the first and what the last
// one's output is compared with. The defaults are those of a language model. Parameters have shapes but no values yet.
struct Model {
  std::vector<std::unique_ptr<nn::Block>> blocks;
  nn::Loss loss = nn::cross_entropy_sum;
  // Returns the input of the first block. Its dim 0 is the row, unless there are several entry blocks.
  std::function<at::Tensor(const nn::MicrobatchContext&)> input = [](const auto& context) { return context.tokens; };
  // Number of blocks at the beginning that make activations [rows, L, dim] of the input. What passes between them may
  // have any three dimensions, so they are all in the first stage of a pipeline (pipeline::ModelBlocks::entry).
  size_t entry_blocks = 1;
  // Returns the number of rows of the activations. Empty: dim 0 of the input.
  std::function<int64_t(const nn::MicrobatchContext&)> edge_rows;
  // Returns the length L of the activations [rows, L, dim] between blocks, before tensor ranks split it. Several
  // tensors travel between blocks as parts of L.
  std::function<int64_t(const nn::MicrobatchContext&)> edge_length = [](const auto& context) {
    return context.tokens.size(1);
  };
  // Splits the parameters and sets the layers' seams for a mesh. Called once, before any parameter has values. Empty:
  // the model cannot be split. Errors: InvalidArgument (names what does not divide), Unimplemented.
  std::function<absl::Status(Model&, const ParallelOptions&)> parallelize;
  // Keeps the recipes that parameters refer to (nn::Parameter::products) alive.
  std::vector<std::shared_ptr<const nn::MatmulRecipe>> recipes;
};

struct BuildOptions {
  int64_t seq_len = 2048;       // Tokens of a training row. Decides what depends on the context length (YaRN).
  int64_t max_logit_bytes = 0;  // Larger logits are computed in parts of the vocabulary, twice. 0: all at once.
  int64_t longest_row = 0;  // Tokens of the longest row that forward() sees, if held-out rows are longer. Sizes tables.
};

// Builds a model of a registered family. Errors: Unimplemented (unknown family), InvalidArgument (numbers of the spec
// that do not fit together, or blocks and parameters with wrong names), and those of a plug-in's build function.
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);

}  // namespace titan::model
