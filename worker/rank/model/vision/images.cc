#include "worker/rank/model/vision/images.h"

#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "worker/rank/nn/attention_fused.h"

namespace titan::model {

Images pack_images(std::vector<models::PatchGrid> grids) {
  TORCH_CHECK(!grids.empty(), "images: there are none to pack");
  Images images;
  images.grids = std::move(grids);
  std::vector<int64_t> image_of_patch;
  for (size_t image = 0; image < images.grids.size(); ++image) {
    const models::PatchGrid& grid = images.grids[image];
    TORCH_CHECK(grid.height > 0 && grid.width > 0, "images: image ", image, " has ", grid.height, " x ", grid.width,
                " patches");
    image_of_patch.insert(image_of_patch.end(), grid.patches(), static_cast<int64_t>(image));
  }
  images.context.documents = at::tensor(image_of_patch, at::kLong).unsqueeze(0);
  images.context.flash_calls = std::make_shared<nn::FlashCalls>();
  return images;
}

const Images& images_of(const nn::MicrobatchContext& context) {
  const auto* images = dynamic_cast<const Images*>(context.extension.get());
  TORCH_CHECK(images != nullptr, "images: the microbatch has none");
  return *images;
}

}  // namespace titan::model
