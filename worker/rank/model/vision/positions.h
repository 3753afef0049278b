#pragma once

// Resizes a table of position embeddings to the grids of images: bilinear with antialiasing, align_corners = false,
// like SigLIP 2 (arXiv 2502.14786). The result equals torch.nn.functional.interpolate(antialias=True) up to rounding,
// but is computed as two small matrix products, one per side, so that it is deterministic on every device and
// differentiable without another kernel. (LibTorch 2.11 resizes to a single column wrongly on the CPU: all of its
// rows get the same numbers.)

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/plan/models/vision_spec.h"

namespace titan::model {

// Returns float64 [to, from]: the weights with which `from` equally spaced numbers are resized to `to`. Each row sums
// to 1. When the result is smaller, the filter is widened by from / to (antialiasing).
at::Tensor resize_weights(int64_t from, int64_t to);

// Resizes the table [side * side, dim] to every grid, and returns the embeddings of all patches, [P, dim], in the
// table's type. They are computed in at least fp32. Equal grids are computed once.
at::Tensor resize_positions(const at::Tensor& table, const std::vector<models::PatchGrid>& grids);

}  // namespace titan::model
