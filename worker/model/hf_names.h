#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::model {

// Where a parameter stands in a Hugging Face folder, and how its rows are ordered there.
struct HfTensor {
  std::string key;            // "model.layers.0.self_attn.q_proj.weight"
  int64_t permute_heads = 0;  // Rows are permuted within each of so many heads; 0: stored as it is.
};

// The Hugging Face place of a parameter. NotFound when the family has no such parameter, Unimplemented for an unknown
// family.
absl::StatusOr<HfTensor> hf_tensor(const models::ModelSpec& spec, const std::string& fqn);

// The parameter behind a Hugging Face key; nullopt for tensors that carry no weight (rotary tables). NotFound: unknown
// key.
absl::StatusOr<std::optional<std::string>> fqn_of_hf_key(const models::ModelSpec& spec, const std::string& key);

// The config.json with which transformers opens a folder of these weights.
absl::StatusOr<nlohmann::json> hf_config(const models::ModelSpec& spec);

// Full tensors, both ways; no copy when nothing is permuted.
at::Tensor to_hf(const HfTensor& place, const at::Tensor& value);
at::Tensor from_hf(const HfTensor& place, const at::Tensor& value);

}  // namespace titan::model
