#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/plan/models/vision_spec.h"
#include "worker/rank/nn/block.h"

namespace titan::model {

// The images of one microbatch, which its context has as its extension. The encoder gets their patches one after
// another in one row, [1, P, patch_values], so that images of different shapes need no padding.
struct Images : nn::ContextExtension {
  std::vector<models::PatchGrid> grids;
  // Rows to which the encoder's result is padded, so that ranks with different images can exchange their results.
  // 0: it is not.
  int64_t padded_patches = 0;
  // Context of the encoder's layers. Its documents, int64 [1, P] on the CPU, are the images.
  nn::MicrobatchContext context;

  int64_t patches() const { return context.documents.size(1); }
};

// Returns the images with these grids, each of at least one patch. There must be at least one.
Images pack_images(std::vector<models::PatchGrid> grids);

// Finds the images of a microbatch, for the blocks of the vision tower.
using ImagesOf = std::function<const Images&(const nn::MicrobatchContext&)>;

// Returns the images that are the extension of the context. Throws c10::Error if there are none.
const Images& images_of(const nn::MicrobatchContext& context);

}  // namespace titan::model
