#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan/models/sizes.h"

namespace titan::models {

// Appends the tensors of one module after another, under a common prefix.
class ParameterList {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, ParameterRole role = ParameterRole::kDense) {
    tensors_.push_back({absl::StrCat(prefix_, name), std::move(shape), role});
  }
  void linear(const std::string& name, int64_t out, int64_t in, bool bias = false,
              ParameterRole role = ParameterRole::kDense) {
    add(absl::StrCat(name, ".weight"), {out, in}, role);
    if (bias) add(absl::StrCat(name, ".bias"), {out}, role);
  }
  void swiglu(const std::string& name, int64_t dim, int64_t hidden, ParameterRole role = ParameterRole::kDense,
              bool bias = false) {
    linear(absl::StrCat(name, ".w1"), hidden, dim, bias, role);
    linear(absl::StrCat(name, ".w2"), dim, hidden, bias, role);
    linear(absl::StrCat(name, ".w3"), hidden, dim, bias, role);
  }
  void norm(const std::string& name, int64_t size, bool bias = false) {
    add(absl::StrCat(name, ".weight"), {size});
    if (bias) add(absl::StrCat(name, ".bias"), {size});
  }
  void append(std::vector<ParameterSpec> tensors) {  // Under their own names, without the prefix.
    tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
  }
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  std::vector<ParameterSpec> take() { return std::move(tensors_); }

 private:
  std::string prefix_;
  std::vector<ParameterSpec> tensors_;
};

}  // namespace titan::models
