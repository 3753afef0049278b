#include "worker/rank/model/vlm/siglip2_adapter.h"

#include <utility>

#include "common/base/status/status.h"
#include "common/plan/models/vision.h"
#include "worker/rank/data/images/patches.h"

namespace titan::model::vlm {
namespace {

constexpr int64_t kExampleImage = 1;  // The image token of examples.

class Siglip2Adapter final : public ImageAdapter {
 public:
  explicit Siglip2Adapter(const models::VisionSpec& vision) : vision_(vision) {}

  PatchNumbers numbers() const override {
    return {.patch_size = vision_.patch_size, .merge = 1, .values = vision_.patch_values()};
  }
  int64_t flops_per_patch(int64_t patches) const override { return models::flops_per_patch(vision_, patches); }

  absl::Status use_keys(const config::JobConfig& config) override {
    options_ = {.patch_size = static_cast<int>(vision_.patch_size),
                .merge_size = 1,
                .max_patches = static_cast<int>(config.data.max_patches_per_image)};
    return absl::OkStatus();
  }
  data::ImageTokenTexts token_texts() const override { return {}; }
  absl::Status use_tokens(const data::ImageTokens& tokens) override {
    image_token_ = tokens.image;
    return absl::OkStatus();
  }
  int64_t image_token() const override { return image_token_; }

  absl::StatusOr<data::SampleImage> cut(const images::Image& image) const override {
    TITAN_ASSIGN_OR_RETURN(images::ImagePatches cut, images::cut_patches(image, options_));
    return data::SampleImage{.grid = {.height = cut.rows, .width = cut.columns}, .patches = std::move(cut.patches)};
  }
  std::shared_ptr<Images> pack(std::vector<models::PatchGrid> grids, at::Device /*device*/) const override {
    return std::make_shared<Images>(pack_images(std::move(grids)));
  }

 private:
  const models::VisionSpec vision_;
  images::PatchOptions options_;
  int64_t image_token_ = kExampleImage;
};

}  // namespace

std::unique_ptr<ImageAdapter> siglip2_adapter(const models::VisionSpec& vision) {
  return std::make_unique<Siglip2Adapter>(vision);
}

}  // namespace titan::model::vlm
