#pragma once

// Estimates the memory of each block on a rank for one microbatch, by phase, in bytes. Does not need LibTorch.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/activations.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/models/sizes.h"

namespace titan::memory {

// Returns the rows of one microbatch.
int64_t microbatch_rows(const config::JobConfig& config);

// Returns the shape of one microbatch on one rank of a job of a language model.
models::ActivationShape activation_shape(const config::JobConfig& config);

// Returns what each block of the engine keeps of one microbatch on one rank of a job: nothing for the blocks of a
// vision tower that has no estimate.
std::vector<models::BlockActivations> block_activations(const config::JobConfig& config, const models::ModelSpec& spec);

// Position of a layer.
struct LayerPosition {
  int number = 0;     // Number among the layers of its rank, from 1.
  int64_t index = 0;  // N of "layers.N". -1: another layer, which activation_checkpoint.layers cannot list.
};

// Counts the layers of one rank, block by block in the model's order. As in the engine, every block but the first and
// the last is a layer for recomputation, and those that make activations of the input, except the last of these, are
// counted apart.
class LayerCounter {
 public:
  explicit LayerCounter(const models::ModelSpec& spec) : blocks_(models::block_names(spec)) {}
  // Returns the position of the rank's next block, which has this index among all blocks of the model. Nothing if it is
  // not a layer.
  std::optional<LayerPosition> next(size_t block);

 private:
  const pipeline::ModelBlocks blocks_;
  int entry_layers_ = 0, layers_ = 0;
};

// Whether a layer's forward pass runs again in the backward pass, at least in part.
bool is_recomputed(const config::ActivationCheckpointSection& ac, const LayerPosition& layer);

// Returns the share of a model's layers, 0 to 1, that are recomputed as a whole and keep only their input.
double recomputed_share(const config::ActivationCheckpointSection& ac, int64_t n_layers);

// Returns the bytes that a layer keeps for its backward pass, excluding its input.
int64_t kept_bytes(const models::BlockActivations& layer, const config::ActivationCheckpointSection& ac,
                   const LayerPosition& place);

// Memory at one point of a backward pass, excluding the block's input and the gradient of its output.
struct Moment {
  int64_t activations = 0;
  int64_t weight_gradients = 0;  // Weight elements of the block whose gradients already exist.
};

struct BlockMemory {
  int64_t input = 0;        // Size of the input, which is kept for the backward pass.
  int64_t output = 0;       // Size of the output and of its gradient.
  int64_t graph = 0;        // Everything that the backward pass reads.
  int64_t forward = 0;      // Peak of a forward pass that builds the graph, including input and output.
  int64_t first_pass = 0;   // The same without a graph.
  int64_t for_weights = 0;  // Kept between the halves of a split backward pass.
  bool defers = true;       // Whether a split backward pass leaves weight gradients to its second half.
  std::vector<Moment> backward;
};

// Returns the memory of the engine's blocks, in order: for a decoder tok_embeddings, each layer and output, after those
// of its vision tower if it has one.
std::vector<BlockMemory> block_memory(const config::JobConfig& config, const models::ModelSpec& spec,
                                      const mesh::Mesh& mesh);

}  // namespace titan::memory
