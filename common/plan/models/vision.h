#pragma once

// The parameters and the work of a vision tower (vision_spec.h).

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/models/sizes.h"
#include "common/plan/models/vision_spec.h"

namespace titan::models {

// Describes the first number of a spec that is invalid or contradicts another: "n_heads: 12 does not divide dim 100".
// Empty if all are consistent.
std::string inconsistency(const VisionSpec& spec);

// Returns every parameter, in declaration order, under torchtitan's names: "encoder.layers.0.self_attn.q_proj.weight".
std::vector<ParameterSpec> parameters(const VisionSpec& spec);
int64_t parameter_count(const VisionSpec& spec);

// Whether a parameter of a vision-language model is one of the tower, by its name. Knows Qwen3-VL's tower too.
bool is_vision_parameter(const std::string& fqn);

// Returns the names of the engine's blocks, in order.
std::vector<std::string> vision_block_names(const VisionSpec& spec);

// Returns the engine's block of a parameter: "encoder.embeddings", "encoder.layers.3", or "projector" (final norm and
// projector).
std::string vision_block_of(const std::string& fqn);

// Returns the training FLOPs per patch, forward and backward, of images of `patches` patches: 6 per parameter of a
// matrix (4 in the patch embedding, because pixels have no gradient), and 12 * layers * dim * patches for attention.
int64_t flops_per_patch(const VisionSpec& spec, int64_t patches);

}  // namespace titan::models
