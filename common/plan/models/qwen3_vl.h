#pragma once

// Functions of Qwen3-VL's numbers: `text` is its language model.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "common/plan/models/qwen3_vl_spec.h"
#include "common/plan/models/sizes.h"

namespace titan::models {

// Describes the first number that is invalid or contradicts another. Empty if all are consistent. The text's own
// numbers are checked when it is built.
std::string inconsistency(const ModelSpec& text, const Qwen3VlSpec& spec);

// Returns, for each pair of a head's channels, the axis of a position by which it turns: 0 time, 1 row, 2 column.
std::vector<int64_t> mrope_axes(const ModelSpec& text, const Qwen3VlSpec& spec);

// Returns every parameter of the tower in declaration order, under transformers' names: "visual.blocks.0.norm1.weight".
std::vector<ParameterSpec> parameters(const Qwen3VlVisionSpec& spec);

// Returns the names of the tower's blocks, in order, and the block of one of its parameters: "visual.patch_embed" (with
// the table of positions), "visual.blocks.3" (with its merger of DeepStack) or "visual.merger".
std::vector<std::string> vision_block_names(const Qwen3VlVisionSpec& spec);
std::string vision_block_of(const Qwen3VlVisionSpec& spec, const std::string& fqn);

// Returns the training FLOPs per patch, forward and backward, of images of `patches` patches, counted as those of
// SigLIP 2's tower (vision.h). A matrix of a merger is used once for a square of patches.
int64_t flops_per_patch(const Qwen3VlVisionSpec& spec, int64_t patches);

}  // namespace titan::models
