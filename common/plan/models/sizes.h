#pragma once

// Lists the parameters of a model with their shapes, and the sizes that tensor and expert ranks must divide.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/mesh/mesh.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"

namespace titan::models {

enum class ParameterRole { kEmbedding, kDense, kRouter, kSharedExpert, kExpert };

// A parameter tensor with torchtitan's name and shape: "layers.0.attention.wq.weight". A tied head is not listed.
struct ParameterSpec {
  std::string fqn;
  std::vector<int64_t> shape;
  ParameterRole role = ParameterRole::kDense;

  int64_t numel() const;
};

// Returns every parameter of the model, in declaration order. Empty for a library's model that is not a decoder.
std::vector<ParameterSpec> parameters(const ModelSpec& spec);

// Returns the names of the model's blocks in order, for the pipeline.
pipeline::ModelBlocks block_names(const ModelSpec& spec);

// Returns the engine's block of a parameter: for a decoder "tok_embeddings", "layers.3", or "output" (final norm and
// head).
std::string block_of(const ModelSpec& spec, const std::string& fqn);

// Numbers of parameters of one block of the engine.
struct BlockSize {
  std::string name;
  int64_t params = 0;         // All parameters.
  int64_t expert_params = 0;  // Parameters of routed experts (sharded on a separate mesh under expert parallelism).
  int64_t active_params = 0;  // Parameters of matmuls for one token: of experts a share of top_k / num_experts, of an
                              // embedding none.
};
std::vector<BlockSize> block_sizes(const ModelSpec& spec);

int64_t parameter_count(const ModelSpec& spec);

// Returns the count that torchtitan reports, which omits a tied embedding.
int64_t reported_parameter_count(const ModelSpec& spec);

// Returns the training FLOPs per token, forward and backward, as torchtitan counts them for MFU: 6 per matmul parameter
// that the token uses, and 6 * layers * heads * (qk + v head size) * seq_len for attention (no causal discount, no
// recomputation). Every parameter of a vision tower counts, as if each token were a patch, and its attention does not;
// flops_per_patch() is exact.
int64_t flops_per_token(const ModelSpec& spec, int64_t seq_len);

// Returns the sizes of a model that tensor and expert ranks must divide (mesh::check_divisible), without those of its
// batch.
mesh::Sizes split_sizes(const ModelSpec& spec);

}  // namespace titan::models
