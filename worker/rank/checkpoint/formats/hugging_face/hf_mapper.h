#pragma once

// HfMapper states where each parameter of a model stands in Hugging Face weights, and in which layout (HfLayout). The
// functions at the end compute which part of a Hugging Face tensor holds which part of a parameter, and back.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

// In which exports transformers' class keeps a tensor in float32, whatever the type of the model: its
// _keep_in_fp32_modules and, with kAlways, its _keep_in_fp32_modules_strict.
enum class KeepFloat32 { kNever, kNotFloat16, kAlways };

// Consecutive rows of a tensor, where a row is an index of dim 0.
struct HfRows {
  size_t key = 0;  // Index in HfLayout::keys.
  int64_t begin = 0, count = 0;
};

// Where a parameter (or saved buffer) stands in Hugging Face weights, and in which layout. It is plain data instead of
// code, so that a rank can compute which bytes of which tensor hold its part.
struct HfLayout {
  // One tensor or, if `stacked`, one for each index of the parameter's first dim (experts stored separately), in order,
  // or those that `rows` names.
  std::vector<std::string> keys;
  bool stacked = false;
  // Number of heads in which rows are stored as two halves, where the model keeps neighboring pairs; 0: rows are stored
  // as they are.
  int64_t permute_heads = 0;
  bool transposed = false;  // The last two dims are swapped in the file.
  // The tensor holds `parts` parameters side by side along its last dim (gate and up projections); this is number
  // `part`.
  int64_t part = 0, parts = 1;
  // The rows of the parameter, from its first to its last, if they stand in several tensors (a fused projection of
  // queries, keys and values) or in another order (swapped halves). Together they are all rows of these tensors. Empty:
  // they are those of keys[0]. Not with `stacked`, `permute_heads`, `transposed` or `parts`.
  std::vector<HfRows> rows;
  // The tensor also holds the rows of other parameters (a fused projection): it has `total_rows` rows, and those of
  // this parameter begin at `first_row`. 0: the tensor has no other rows. Alone, with one key.
  int64_t first_row = 0, total_rows = 0;
  // Dims of the tensor after the first, if it is a convolution's weight [out, in, height, width] and the parameter the
  // same numbers as a matrix [out, in * height * width]. Empty: it has the parameter's shape. Alone, with one key.
  std::vector<int64_t> kernel = {};
  bool optional = false;  // A folder may lack it: then the model's values stay.
  // Folders of other programs may have it. Exports do not, because transformers' class has no such tensor.
  bool read_only = false;
  KeepFloat32 float32 = KeepFloat32::kNever;
};

// Defines how one model's parameters are named and laid out in Hugging Face weights.
class HfMapper {
 public:
  virtual ~HfMapper() = default;

  // Returns the layouts in which a folder may hold parameter `fqn`; exports write the first, unless it is read-only.
  // Empty: the parameter is derived (a tied head) or unknown there, and neither read nor written. Errors: NotFound if
  // the model has no such parameter.
  virtual absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const = 0;

  // Returns false for a tensor that does not belong to weights of this model: a sign that they are another model's.
  virtual bool knows(const std::string& key) const {
    (void)key;
    return true;
  }

  // Returns the config.json for exports, so that transformers can open the folder; null: exports have none.
  virtual nlohmann::json config() const { return nullptr; }

  // Returns another name under which exports write their index too, for programs that look for that one; empty: none.
  virtual std::string second_index_name() const { return ""; }
};

// Returns the shape of the layout's tensor number `key` for a parameter of `shape`. Without `rows` all have the same.
std::vector<int64_t> hf_shape(const HfLayout& layout, const std::vector<int64_t>& shape, size_t key = 0);

// A box of the layout's tensor number `key`.
struct HfRead {
  size_t key = 0;
  Box box;
};

// Returns the boxes that together, along dim 0 and in this order, are `box` of a parameter with HfLayout::rows. Empty
// if `box` has no rows.
std::vector<HfRead> hf_reads(const HfLayout& layout, const Box& box);

// Returns the smallest box of the tensor that holds `box` of the parameter; if stacked, of each tensor with an index
// inside `box`. Permuted rows come as whole heads. Not for a layout with `rows`.
Box hf_box(const HfLayout& layout, const std::vector<int64_t>& shape, const Box& box);

// Turns `read`, `[hf_box(...).shape...]`, into exactly `box`, `[box.shape...]`; if stacked, into one of its rows,
// `[box.shape[1]...]`.
at::Tensor from_hf_box(const HfLayout& layout, const std::vector<int64_t>& shape, const Box& box,
                       const at::Tensor& read);

// Returns the layout that exports write; null: they have no tensor for this parameter.
const HfLayout* layout_to_write(const std::vector<HfLayout>& layouts);

// Returns the type of the layout's tensors in an export whose other tensors are of type `wanted`.
at::ScalarType stored_type(const HfLayout& layout, at::ScalarType wanted);

// Whether other parameters stand in the same tensor.
inline bool is_shared(const HfLayout& layout) { return layout.parts > 1 || layout.total_rows > 0; }

// Turns a whole parameter `full`, `[shape...]`, into the layout's tensors, `[hf_shape(...)...]` each (only its own part
// of each if it shares them). They are views where nothing moves.
std::vector<at::Tensor> to_hf(const HfLayout& layout, const at::Tensor& full);

}  // namespace titan::checkpoint
