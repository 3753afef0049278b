#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/models/model_spec.h"
#include "worker/nn/block.h"

namespace titan::model {

// A model is its blocks in order: embedding, layers, norm and head. Parameters have shapes but no values yet.
struct Model {
  std::vector<std::unique_ptr<nn::Block>> blocks;
};

struct BuildOptions {
  int64_t seq_len = 2048;  // Longest sequence that forward() will see: sizes the RoPE table.
};

// Unimplemented names the part of the spec that no code computes yet.
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);

}  // namespace titan::model
