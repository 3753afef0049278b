#include "worker/rank/data/multimodal/samples.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {
namespace {

absl::Status check_image(const SampleImage& image, size_t number, const MultimodalOptions& options) {
  const models::PatchGrid& grid = image.grid;
  const auto bad = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("image ", number, " of ", grid.height, " x ", grid.width, " patches ", why...));
  };
  if (grid.height <= 0 || grid.width <= 0) return bad("is empty");
  // Compared by division, because the product of corrupt sides may overflow.
  if (grid.height > options.max_patches_per_image / grid.width)
    return bad("exceeds max_patches_per_image = ", options.max_patches_per_image);
  const int64_t merge = options.spatial_merge_size;
  if (grid.height % merge != 0 || grid.width % merge != 0)
    return bad("cannot be merged by spatial_merge_size = ", merge);
  const auto values = static_cast<int64_t>(image.patches.size());
  if (values > 0 && values != grid.patches() * options.patch_values)
    return bad("has ", values, " numbers, need ", grid.patches() * options.patch_values);
  return absl::OkStatus();
}

}  // namespace

absl::Status check_options(const MultimodalOptions& options) {
  const std::pair<const char*, int64_t> sizes[] = {{"rows", options.rows},
                                                   {"seq_len", options.seq_len},
                                                   {"max_images", options.max_images},
                                                   {"max_patches_per_image", options.max_patches_per_image},
                                                   {"spatial_merge_size", options.spatial_merge_size},
                                                   {"patch_values", options.patch_values}};
  for (const auto& [name, value] : sizes) {
    if (value <= 0) return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " is not above 0"));
  }
  if (options.packing_window < 0)
    return absl::InvalidArgumentError(absl::StrCat("packing_window: ", options.packing_window, " is below 0"));
  if (options.image_token == options.pad_token)
    return absl::InvalidArgumentError(absl::StrCat("image_token and pad_token are both ", options.pad_token));
  return absl::OkStatus();
}

absl::Status check_sample(const MultimodalSample& sample, const MultimodalOptions& options) {
  const auto tokens = static_cast<int64_t>(sample.tokens.size()), images = static_cast<int64_t>(sample.images.size());
  if (tokens == 0) return absl::InvalidArgumentError("it has no tokens");
  if (sample.labels.size() != sample.tokens.size())
    return absl::InvalidArgumentError(absl::StrCat("it has ", tokens, " tokens and ", sample.labels.size(), " labels"));
  if (tokens > options.seq_len)
    return absl::InvalidArgumentError(absl::StrCat("its ", tokens, " tokens exceed seq_len = ", options.seq_len));
  if (images > options.max_images)
    return absl::InvalidArgumentError(absl::StrCat("its ", images, " images exceed max_images = ", options.max_images));
  int64_t expected = 0;
  for (size_t i = 0; i < sample.images.size(); ++i) {
    TITAN_RETURN_IF_ERROR(check_image(sample.images[i], i, options));
    expected += image_tokens(sample.images[i].grid, options.spatial_merge_size);
  }
  const int64_t found = std::count(sample.tokens.begin(), sample.tokens.end(), options.image_token);
  if (found != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", found, " image tokens, but its ", images, " images need ", expected));
  }
  return absl::OkStatus();
}

}  // namespace titan::data
