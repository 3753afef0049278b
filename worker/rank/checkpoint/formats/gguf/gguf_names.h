#pragma once

// Names and layouts of a model's tensors in GGUF, as llama.cpp reads them.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::checkpoint::gguf {

// Returns llama.cpp's name for the architecture of a config.json of transformers. Errors: FailedPrecondition for one
// that it computes in another way or that exports do not support.
absl::StatusOr<std::string> architecture_of(const nlohmann::json& config);

// Checks that the architecture computes all options of a model, as manifests store it (models::to_json; null: not
// known). FailedPrecondition names the first one that it lacks.
absl::Status check_options(const nlohmann::json& model, const std::string& architecture);

// The values of a parameter that a tensor has.
enum class Part {
  kWhole,
  kEvenRows,  // [E, 2F, ...]: rows 0, 2, ... of dim 1, the gates.
  kOddRows,
  kKeyHeads,    // [heads * (keys + values), rank]: each head's rows for keys, transposed: [heads, rank, keys].
  kValueHeads,  // [heads, values, rank], from the same parameter.
};

// A tensor of the file, and where its values come from.
struct Source {
  std::string name;
  std::string fqn;  // The parameter's or buffer's name.
  Part part = Part::kWhole;
  std::vector<int64_t> shape;
  int64_t rows_per_index = 1;  // Rows of the parameter's dim 0 in one index of this tensor's dim 0.
};

// Returns the tensors that hold the parameter or buffer `fqn` of `shape`; none if llama.cpp has no place for it.
// Errors: FailedPrecondition for an unknown one.
absl::StatusOr<std::vector<Source>> sources_of(const nlohmann::json& config, const std::string& architecture,
                                               const std::string& fqn, const std::vector<int64_t>& shape);

// Returns values `[count, source.shape[1:]...]` from the parameter's rows for them,
// `[count * source.rows_per_index, ...]`.
at::Tensor take(const Source& source, const at::Tensor& rows);

}  // namespace titan::checkpoint::gguf
