#pragma once

// HfMapper says where each parameter of a model stands in Hugging Face weights and in which form (HfLayout); the
// functions at the end compute which part of a Hugging Face tensor holds which part of a parameter, and back.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

// In which exports transformers' class has a tensor in float32, whatever the rest of the model has: its
// _keep_in_fp32_modules, and with kAlways its _keep_in_fp32_modules_strict.
enum class KeepFloat32 { kNever, kNotFloat16, kAlways };

// Where a parameter (or saved buffer) stands in Hugging Face weights, and in which form. Plain data instead of code, so
// that a rank can tell which bytes of which tensor hold its part.
struct HfLayout {
  // One tensor; or, when `stacked`, one for each index of the parameter's first dim (experts stored apart), in order.
  std::vector<std::string> keys;
  bool stacked = false;
  // Rows are stored as two halves within each of so many heads, where the model keeps neighbouring pairs; 0: as they
  // are.
  int64_t permute_heads = 0;
  bool transposed = false;  // The last two dims are swapped there.
  // The tensor holds `parts` parameters side by side along its last dim (gate and up projections); this one is `part`.
  int64_t part = 0, parts = 1;
  bool optional = false;  // A folder may lack it: then what the model has stays.
  // Folders of other programs may have it and exports do not: transformers' class has no such tensor.
  bool read_only = false;
  KeepFloat32 float32 = KeepFloat32::kNever;
};

// How one model's parameters are called and laid out in Hugging Face weights.
class HfMapper {
 public:
  virtual ~HfMapper() = default;

  // The forms in which a folder may hold parameter `fqn`; the first is the one that exports write, unless it is
  // read-only. Empty: it is derived (a tied head) or unknown there, and neither read nor written. NotFound when the
  // model has no such parameter.
  virtual absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const = 0;

  // False for a tensor that does not belong to weights of this model: a sign that they are another's.
  virtual bool knows(const std::string& key) const {
    (void)key;
    return true;
  }

  // config.json for exports, so that transformers can open the folder; null: none is written.
  virtual nlohmann::json config() const { return nullptr; }
};

// Shape of each of the layout's tensors for a parameter of `shape`.
std::vector<int64_t> hf_shape(const HfLayout& layout, const std::vector<int64_t>& shape);

// The smallest box of the tensor that holds `box` of the parameter; for a stacked parameter, of each tensor whose index
// is inside `box`. Permuted rows come as whole heads.
Box hf_box(const HfLayout& layout, const std::vector<int64_t>& shape, const Box& box);

// The inverse for values: what was read from hf_box() as exactly `box`; for a stacked parameter, as one of its rows.
at::Tensor from_hf_box(const HfLayout& layout, const std::vector<int64_t>& shape, const Box& box,
                       const at::Tensor& read);

// The form that exports write; null: they have no tensor for this parameter.
const HfLayout* layout_to_write(const std::vector<HfLayout>& layouts);

// The type of the layout's tensors in an export whose others are of type `wanted`.
at::ScalarType stored_type(const HfLayout& layout, at::ScalarType wanted);

// A whole parameter as the layout's tensors (only its part of each when it shares them); views where nothing moves.
std::vector<at::Tensor> to_hf(const HfLayout& layout, const at::Tensor& full);

}  // namespace titan::checkpoint
