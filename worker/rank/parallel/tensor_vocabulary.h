#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/block.h"

// The two ends of a decoder whose vocabulary is split over ranks; the loss is in tensor.h.
namespace titan::parallel {

// The rows of the whole embedding that this rank's part of it has; zeros for the tokens that others have.
at::Tensor look_up_own_rows(const at::Tensor& tokens, const nn::Parameter& weight);

}  // namespace titan::parallel
