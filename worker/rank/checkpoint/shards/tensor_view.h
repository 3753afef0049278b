#pragma once

// Views of tensors by boxes (tensor_box.h), for code with LibTorch.

#include <ATen/ATen.h>

#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

// Returns the box `part` of a tensor, as a view `[part.shape...]` of `held [of.shape...]`, which is the box `of`.
// `part` lies inside `of`.
inline at::Tensor part_of(at::Tensor held, const Box& of, const Box& part) {
  for (size_t d = 0; d < part.shape.size(); ++d)
    held = held.narrow(static_cast<int64_t>(d), part.offset[d] - of.offset[d], part.shape[d]);
  return held;
}

}  // namespace titan::checkpoint
