#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/images/image.h"

namespace titan::images {

struct PatchOptions {
  int patch_size = 16;    // Length of a patch's side in pixels.
  int merge_size = 1;     // Sides become multiples of patch_size * merge_size.
  int max_patches = 256;  // Most squares of patch_size * merge_size pixels in an image.
};

struct ImageSize {
  int width = 0, height = 0;
};

// Returns the size to which torchtitan's vision-language experiment resizes an image before it cuts patches: about the
// same shape, with sides that are multiples of patch_size * merge_size and at most max_patches such squares. The
// arithmetic is Python's, in double.
// Errors: InvalidArgument for images that the experiment drops: one side 200 times the other or more, or a side that
// would become zero.
absl::StatusOr<ImageSize> patched_size(ImageSize size, const PatchOptions& options);

// An image as rows for a vision transformer.
struct ImagePatches {
  int rows = 0, columns = 0;    // Patches along the sides.
  std::vector<float> patches;   // [rows * columns, patch_size * patch_size * 3], "(row col) (y x color)".
  std::vector<int64_t> places;  // [rows * columns, 2]: row and column of each.
};

// Converts to RGB, resizes to patched_size() with resize_bicubic(), normalises with CLIP's mean and standard deviation
// of each colour (in double, then rounded to float), and cuts into patches, row after row. Errors: those of
// patched_size().
absl::StatusOr<ImagePatches> cut_patches(const Image& image, const PatchOptions& options);

}  // namespace titan::images
