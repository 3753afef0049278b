#pragma once

// Deals the images of a microbatch to the context ranks, all of which have its rows.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/plan/models/vision_spec.h"
#include "worker/rank/model/vlm/image_adapter.h"

namespace titan::model::vlm {

// The images that a rank encodes.
struct ImageDeal {
  // If the rank has none, a placeholder: the smallest image, which no token stands for. Ranks that share the tower
  // (FSDP) gather its weights together, so each of them has to run it. The gradients of such a pass are zero.
  std::vector<models::PatchGrid> grids;
  at::Tensor patches;       // fp32 [1, P, patch_values]
  int64_t padded_rows = 0;  // Rows to which the tower's results of each rank are padded (Images::padded_patches).
  // int64 [tokens of all images, in their order]: the row of each in the results of all ranks one after another.
  at::Tensor rows;
};

// Deals the images so that all ranks have about the same work (data::balance_images). `grids`, int64 [B, images, 2] and
// `patches`, fp32 [B, most patches of a row, patch_values], are those of a batch (inputs.h).
ImageDeal deal_images(const at::Tensor& grids, const at::Tensor& patches, const ImageAdapter& adapter, int rank,
                      int ranks);

}  // namespace titan::model::vlm
