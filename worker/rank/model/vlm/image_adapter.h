#pragma once

// An image adapter does what differs between families with a vision tower, from a decoded picture to what the blocks
// read of it. The objective of vision-language models knows no family.

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/vision_spec.h"
#include "worker/rank/data/images/image.h"
#include "worker/rank/data/multimodal/samples.h"
#include "worker/rank/data/tokenizer/image_text.h"
#include "worker/rank/model/vision/images.h"
#include "worker/rank/nn/block.h"

namespace titan::model::vlm {

// The numbers of a tower's patches.
struct PatchNumbers {
  int64_t patch_size = 0;  // Pixels along a side of a patch.
  int64_t merge = 1;       // Squares of merge x merge patches become one token.
  int64_t values = 0;      // Numbers of a patch.
};

// After the functions that are not const, several threads may use it.
class ImageAdapter {
 public:
  virtual ~ImageAdapter() = default;

  virtual PatchNumbers numbers() const = 0;
  // Returns the training FLOPs per patch of an image of `patches` patches.
  virtual int64_t flops_per_patch(int64_t patches) const = 0;

  // Takes what follows from the job's keys. Reads no files. Errors: InvalidArgument, naming the key.
  virtual absl::Status use_keys(const config::JobConfig& config) = 0;
  // Reads what the folder of the tokenizer says about images. Errors: InvalidArgument, naming the file.
  virtual absl::Status use_assets(const std::string& folder) {
    (void)folder;
    return absl::OkStatus();
  }
  // Returns the texts of the special tokens around and for images.
  virtual data::ImageTokenTexts token_texts() const = 0;
  // Takes the tokenizer's special tokens. Errors: InvalidArgument if they are not the model's.
  virtual absl::Status use_tokens(const data::ImageTokens& tokens) = 0;
  // Returns the token that stands for a part of an image; without use_tokens(), the one of examples.
  virtual int64_t image_token() const = 0;

  // Resizes an image and cuts it into patches, at most data.max_patches_per_image except of very narrow images, which
  // data::check_sample() then refuses. Errors: InvalidArgument for an image of an unsuitable shape.
  virtual absl::StatusOr<data::SampleImage> cut(const images::Image& image) const = 0;
  // Checks what is special to the family about a whole sample. InvalidArgument: it cannot be used.
  virtual absl::Status check(const data::MultimodalSample& sample) const {
    (void)sample;
    return absl::OkStatus();
  }

  // Packs images for the tower. There is at least one.
  virtual std::shared_ptr<Images> pack(std::vector<models::PatchGrid> grids, at::Device device) const = 0;
  // Adds further inputs of the blocks to a microbatch, which is on its device and may be a share of each row
  // (MicrobatchContext::positions). `tokens` int64 [B, T] and `grids` int64 [B, images, 2] are the whole rows', on the
  // CPU (inputs.h).
  virtual void add_inputs(const at::Tensor& tokens, const at::Tensor& grids, nn::MicrobatchContext& context) const {
    (void)tokens, (void)grids, (void)context;
  }
};

}  // namespace titan::model::vlm
