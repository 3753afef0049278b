#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::pipeline {

// Names of the engine's blocks of each stage, in order: "tok_embeddings", "layers.3", "output" (final norm and head).
using Split = std::vector<std::vector<std::string>>;

// Deals layers evenly over the stages, as torchtitan does: the embedding counts as `first_less` layers of the first
// stage and norm with head as `last_less` of the last; what does not divide goes to the first stages, one each.
// Errors: InvalidArgument, message beginning with the configuration key, when a stage would be empty or the embedding
// or head alone would weigh more than a stage.
absl::StatusOr<Split> split_layers(int stages, std::int64_t n_layers, std::int64_t first_less, std::int64_t last_less);

// A split that the user wrote down, in torchtitan's module names ("norm" and "output" are one block here). Every module
// must occur once, parts in the model's order. Errors: InvalidArgument naming part and module.
absl::StatusOr<Split> split_by_names(const std::vector<std::vector<std::string>>& parts, std::int64_t n_layers);

}  // namespace titan::pipeline
