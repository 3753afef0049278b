#include "worker/rank/model/qwen3_vl/image_adapter.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/models/qwen3_vl.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/images/qwen_patches.h"
#include "worker/rank/model/qwen3_vl/inputs.h"
#include "worker/rank/model/vision/qwen3_vl.h"
#include "worker/rank/parallel/weight_gather.h"

namespace titan::model::qwen3_vl {
namespace {

using images::QwenPatchOptions;

RowImages images_of_rows(const at::Tensor& grids) {
  RowImages images;
  const auto sides = grids.accessor<int64_t, 3>();
  for (int64_t row = 0; row < grids.size(0); ++row) {
    int64_t count = 0;
    for (; count < grids.size(1) && sides[row][count][0] > 0; ++count)
      images.grids.push_back({.height = sides[row][count][0], .width = sides[row][count][1]});
    images.images_of_row.push_back(count);
  }
  return images;
}

// The shapes of patches follow from the tower.
absl::Status check_patches(const QwenPatchOptions& options, const models::Qwen3VlVisionSpec& vision,
                           const std::string& path) {
  const std::tuple<const char*, int64_t, int64_t> numbers[] = {
      {"patch_size", options.patch_size, vision.patch_size},
      {"temporal_patch_size", options.temporal_patch_size, vision.temporal_patch_size},
      {"merge_size", options.merge_size, vision.merge}};
  for (const auto& [key, there, here] : numbers) {
    if (there != here)
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", key, " is ", there, ", but the vision tower has ", here));
  }
  return absl::OkStatus();
}

class Qwen3VlAdapter final : public vlm::ImageAdapter {
 public:
  explicit Qwen3VlAdapter(const models::ModelSpec& spec) : spec_(spec), vl_(*spec.qwen3_vl) {
    options_.patch_size = static_cast<int>(vl_.vision.patch_size);
    options_.temporal_patch_size = static_cast<int>(vl_.vision.temporal_patch_size);
    options_.merge_size = static_cast<int>(vl_.vision.merge);
  }

  vlm::PatchNumbers numbers() const override {
    const models::Qwen3VlVisionSpec& vision = vl_.vision;
    return {.patch_size = vision.patch_size, .merge = vision.merge, .values = vision.patch_values()};
  }
  int64_t flops_per_patch(int64_t patches) const override { return models::flops_per_patch(vl_.vision, patches); }

  absl::Status use_keys(const config::JobConfig& config) override {
    const config::TrainingSection& training = config.training;
    TITAN_ASSIGN_OR_RETURN(
        const parallel::Precision precision,
        parallel::make_precision(training.dtype, training.mixed_precision_param, training.mixed_precision_reduce));
    compute_ = precision.param;
    max_pixels_ = config.data.max_patches_per_image * vl_.vision.patch_size * vl_.vision.patch_size;
    return absl::OkStatus();
  }

  absl::Status use_assets(const std::string& folder) override {
    const std::string path = absl::StrCat(folder, "/preprocessor_config.json");
    std::ifstream file(path);
    if (!file) return absl::OkStatus();
    const nlohmann::json config = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (config.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(path, ": not JSON"));
    TITAN_ASSIGN_OR_RETURN(options_, images::read_qwen_patch_options(config, path));
    return check_patches(options_, vl_.vision, path);
  }

  data::ImageTokenTexts token_texts() const override { return data::kQwenImageTokens; }

  absl::Status use_tokens(const data::ImageTokens& tokens) override {
    const std::tuple<const char*, int64_t, int64_t> all[] = {{tokens.texts.image, tokens.image, vl_.image_token},
                                                             {tokens.texts.begin, tokens.begin, vl_.vision_start_token},
                                                             {tokens.texts.end, tokens.end, vl_.vision_end_token}};
    for (const auto& [text, there, here] : all) {
      if (there != here)
        return absl::InvalidArgumentError(absl::StrCat("the tokenizer's token ", text, " is ", there, ", but that of ",
                                                       spec_.name, " ", spec_.flavor, " is ", here));
    }
    return absl::OkStatus();
  }
  int64_t image_token() const override { return vl_.image_token; }

  absl::StatusOr<data::SampleImage> cut(const images::Image& image) const override {
    TITAN_ASSIGN_OR_RETURN(const QwenPatchOptions options, limited({.width = image.width, .height = image.height}));
    TITAN_ASSIGN_OR_RETURN(images::QwenPatches cut, images::cut_qwen_patches(image, options));
    return data::SampleImage{.grid = {.height = cut.rows, .width = cut.columns}, .patches = std::move(cut.patches)};
  }

  absl::Status check(const data::MultimodalSample& sample) const override {
    if (std::count(sample.tokens.begin(), sample.tokens.end(), vl_.video_token) == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("it has the token of videos, ", vl_.video_token, ", which are not supported"));
  }

  std::shared_ptr<Images> pack(std::vector<models::PatchGrid> grids, at::Device device) const override {
    return std::make_shared<Qwen3VlImages>(pack_qwen3_vl_images(std::move(grids), vl_.vision, device, compute_));
  }

  void add_inputs(const at::Tensor& tokens, const at::Tensor& grids, nn::MicrobatchContext& context) const override {
    const absl::Status added = add_rotation(spec_, vl_, tokens, images_of_rows(grids), compute_, context);
    TORCH_CHECK(added.ok(), "images: ", added.ToString());  // check() and data::check_sample() accept no such sample.
  }

 private:
  // Returns the options for an image with the job's limit.
  absl::StatusOr<QwenPatchOptions> limited(images::ImageSize size) const {
    QwenPatchOptions options = options_;
    options.max_pixels = std::min(options.max_pixels, max_pixels_);
    options.min_pixels = std::min(options.min_pixels, options.max_pixels);
    while (true) {
      TITAN_ASSIGN_OR_RETURN(const images::ImageSize resized, images::smart_size(size, options));
      if (int64_t{resized.width} * resized.height <= options.max_pixels || options.min_pixels == 1) return options;
      options.min_pixels /= 2;
    }
  }

  const models::ModelSpec spec_;
  const models::Qwen3VlSpec vl_;
  QwenPatchOptions options_;
  int64_t max_pixels_ = QwenPatchOptions().max_pixels;
  at::ScalarType compute_ = at::kFloat;
};

}  // namespace

std::unique_ptr<vlm::ImageAdapter> image_adapter(const models::ModelSpec& spec) {
  return std::make_unique<Qwen3VlAdapter>(spec);
}

}  // namespace titan::model::qwen3_vl
