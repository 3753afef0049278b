#pragma once

// Deals the images of a microbatch to the context ranks, all of which have its rows.

#include <ATen/ATen.h>

#include <memory>

#include "common/plan/models/vision_spec.h"
#include "worker/rank/model/vision/images.h"

namespace titan::model::vlm {

// The images that a rank encodes.
struct ImageDeal {
  std::shared_ptr<Images> images;  // A placeholder if it has none.
  at::Tensor patches;              // fp32 [1, P, patch_values]
  // int64 [patches of all images, in the order of their tokens]: the row of each in the results of all ranks one after
  // another, each padded to Images::padded_patches rows.
  at::Tensor rows;
};

// Returns the FLOPs with which the tower trains on an image.
int64_t work_of_image(const models::PatchGrid& grid, const models::VisionSpec& vision);

// Deals the images so that all ranks have about the same work (data::balance_images). `grids`, int64 [B, images, 2] and
// `patches`, fp32 [B, most patches of a row, patch_values], are those of a batch (inputs.h).
ImageDeal deal_images(const at::Tensor& grids, const at::Tensor& patches, const models::VisionSpec& vision, int rank,
                      int ranks);

}  // namespace titan::model::vlm
