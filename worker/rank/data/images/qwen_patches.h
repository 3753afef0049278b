#pragma once

// Images as Qwen2-VL and Qwen3-VL read them, like the image processor of transformers (Qwen2VLImageProcessor).

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/images/image.h"
#include "worker/rank/data/images/patches.h"

namespace titan::images {

// The numbers of a preprocessor_config.json. The defaults are those of the released Qwen3-VL.
struct QwenPatchOptions {
  int patch_size = 16;                                // Length of a patch's side in pixels.
  int temporal_patch_size = 2;                        // Frames of a patch. An image is repeated.
  int merge_size = 2;                                 // Sides become multiples of patch_size * merge_size.
  int64_t min_pixels = 65536, max_pixels = 16777216;  // Limits of the resized image.
  double rescale_factor = 1.0 / 255;
  std::array<double, 3> mean = {0.5, 0.5, 0.5}, deviation = {0.5, 0.5, 0.5};  // For each colour, after rescaling.

  bool operator==(const QwenPatchOptions&) const = default;
};

// Reads a preprocessor_config.json. Missing keys have the defaults of transformers' class, which are Qwen2-VL's. Unlike
// transformers 4.57's slow processor, which ignores "size", this honours it, as the fast one does. Errors:
// InvalidArgument naming `path`, the key and its value, for another kind of processor, a step that is switched off,
// another filter than bicubic, or numbers that do not fit together.
absl::StatusOr<QwenPatchOptions> read_qwen_patch_options(const nlohmann::json& config, const std::string& path);

// Returns the size to which an image is resized (smart_resize): about the same shape, sides that are multiples of
// patch_size * merge_size, and an area between min_pixels and max_pixels, up to this rounding. The arithmetic is
// Python's, in double. Errors: InvalidArgument if one side is more than 200 times the other, or if a side would become
// zero.
absl::StatusOr<ImageSize> smart_size(ImageSize size, const QwenPatchOptions& options);

// An image as rows for the vision tower.
struct QwenPatches {
  int rows = 0, columns = 0;  // Patches along the sides.
  // [rows * columns, 3 * temporal_patch_size * patch_size^2], "(color frame y x)". The patches are in the order of
  // their squares of merge_size x merge_size, row by row, and within a square row by row.
  std::vector<float> patches;
};

// Converts to RGB, resizes to smart_size() with resize_bicubic(), normalises and cuts into patches. The floats are
// those of Qwen2VLImageProcessor, bit for bit: rescaled in double and rounded, then normalised in float. Its fast form
// normalises in another order, from which the last bits differ. Errors: those of smart_size().
absl::StatusOr<QwenPatches> cut_qwen_patches(const Image& image, const QwenPatchOptions& options);

}  // namespace titan::images
