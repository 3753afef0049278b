#pragma once

// Samples of texts with images, as a loader makes them, and the limits that a batch of them keeps.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/models/vision_spec.h"
#include "nlohmann/json.hpp"

namespace titan::data {

// An image, cut into patches.
struct SampleImage {
  models::PatchGrid grid;
  // Pixels of the patches, row-major, [grid.patches(), patch_values]. Empty: not decoded yet. Then only the rank that
  // needs the image decodes it, and finds it by `key`.
  std::vector<float> patches;
  int64_t key = 0;
};

struct MultimodalSample {
  std::vector<int32_t> tokens;
  // A label for each of `tokens`: the token itself, or -100 if it is not predicted (image tokens and the tokens around
  // them).
  std::vector<int32_t> labels;
  std::vector<SampleImage> images;  // In the order of their tokens. A sample of only text has none.
};

// Limits are for a global batch, so that the number of ranks does not change what a batch contains. torchtitan's
// max_images_per_batch is for the rows of one data-parallel rank: multiply it by their number.
struct MultimodalOptions {
  int64_t rows = 1;                    // Rows of a global batch.
  int64_t seq_len = 0;                 // Tokens of a row.
  int64_t max_images = 0;              // Images of a global batch.
  int64_t max_patches_per_image = 0;   // Patches of one image.
  int64_t packing_window = 0;          // Samples that are packed into rows together. 0: each has a separate row.
  int64_t spatial_merge_size = 1;      // Squares of merge x merge patches become one token.
  int64_t patch_values = 3 * 16 * 16;  // Numbers of a patch.
  int32_t image_token = 0, pad_token = 0;
};

// Checks the options themselves. InvalidArgument names the first that is impossible.
absl::Status check_options(const MultimodalOptions& options);

// Returns the number of tokens that stand for an image.
inline int64_t image_tokens(const models::PatchGrid& grid, int64_t merge) {
  return grid.height / merge * (grid.width / merge);
}

// Checks that a sample can be in a batch. InvalidArgument gives the reason with its numbers: longer than a row, too
// many images, an image with too many patches or with sides that merging does not divide, pixels of another size,
// labels of another number, or image tokens of another number than the images have.
absl::Status check_sample(const MultimodalSample& sample, const MultimodalOptions& options);

// A sequence of samples in the global order, which does not depend on the number of ranks.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // Returns the next sample. OutOfRange: there are no more. Other errors end the job.
  virtual absl::StatusOr<MultimodalSample> next() = 0;
  // Returns the position of the next sample, as checkpoints store it, and resumes at one.
  virtual nlohmann::json position() const = 0;
  virtual absl::Status seek(const nlohmann::json& position) = 0;
};

}  // namespace titan::data
