#pragma once

// What a block takes of a rank's memory for one microbatch, by phase. LibTorch-free; estimates in bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/activations.h"
#include "common/plan/models/model_spec.h"

namespace titan::memory {

// A microbatch on one rank of a job.
models::ActivationShape activation_shape(const config::JobConfig& config);

// A layer of a rank.
struct LayerPlace {
  int number = 0;     // On its rank, from 1.
  int64_t index = 0;  // In the model, from 0.
};

// Whether a layer runs forward again, at least in part.
bool is_recomputed(const config::ActivationCheckpoint& ac, const LayerPlace& layer);

// Which part of a model's layers runs forward again as a whole, keeping nothing but the input.
double recomputed_share(const config::ActivationCheckpoint& ac, int64_t n_layers);

// What waits for the backward pass of a layer, its input left out.
int64_t kept_bytes(const models::BlockActivations& layer, const config::ActivationCheckpoint& ac,
                   const LayerPlace& place);

// A point of a backward pass: what lives beside the block's input and the gradient of its output.
struct Moment {
  int64_t activations = 0;
  int64_t weight_gradients = 0;  // Elements of the block's weights whose gradients are there already.
};

struct BlockMemory {
  int64_t input = 0;        // Lives from the forward pass on.
  int64_t output = 0;       // And the gradient of it.
  int64_t graph = 0;        // All that the backward pass reads.
  int64_t forward = 0;      // At most during a forward pass that builds the graph, input and output included.
  int64_t first_pass = 0;   // The same without a graph.
  int64_t for_weights = 0;  // Between the halves of a split backward pass.
  bool defers = true;       // Whether such a pass leaves weight gradients to its second half.
  std::vector<Moment> backward;
};

// Of tok_embeddings, each layer and output.
std::vector<BlockMemory> block_memory(const config::JobConfig& config, const models::ModelSpec& spec,
                                      const mesh::Mesh& mesh);

}  // namespace titan::memory
