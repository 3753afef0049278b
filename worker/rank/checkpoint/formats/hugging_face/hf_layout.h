#pragma once

// The arithmetic of HfLayout: which part of a Hugging Face tensor holds which part of a parameter, and back.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/box.h"

namespace titan::checkpoint {

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
