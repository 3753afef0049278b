#pragma once

// Functions of Qwen3-VL's numbers: `text` is its language model, of the family qwen3.

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

}  // namespace titan::models
