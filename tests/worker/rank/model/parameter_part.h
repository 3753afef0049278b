#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/block.h"

namespace titan::testing {

// Returns this rank's part of `whole`, which has the parameter's global shape: a view.
inline at::Tensor part_of(at::Tensor whole, const nn::Parameter& parameter) {
  for (size_t dim = 0; dim < parameter.shape.size(); ++dim) {
    whole = whole.narrow(static_cast<int64_t>(dim), parameter.offset[dim], parameter.shape[dim]);
  }
  return whole;
}

}  // namespace titan::testing
