#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::checkpoint {

// How one model's parameters are called and laid out in Hugging Face weights. All tensors are full, on the CPU, any
// dtype.
class HfMapper {
 public:
  virtual ~HfMapper() = default;

  // The Hugging Face tensors that make up parameter `fqn`, in the order the other two methods use. More than one when a
  // stacked parameter (experts) is stored apart. NotFound when the family has no such parameter; empty: a parameter
  // that is derived (tied head) and neither read nor written.
  virtual absl::StatusOr<std::vector<std::string>> keys(const std::string& fqn) const = 0;

  // Same bytes on both sides, so that a rank may read only its rows.
  virtual bool same_layout(const std::string& fqn) const = 0;

  virtual std::vector<at::Tensor> to_hf(const std::string& fqn, const at::Tensor& full) const = 0;
  virtual at::Tensor from_hf(const std::string& fqn, const std::vector<at::Tensor>& tensors) const = 0;

  // config.json for exports, so that transformers can open the folder; null: none is written.
  virtual nlohmann::json config() const { return nullptr; }
};

}  // namespace titan::checkpoint
