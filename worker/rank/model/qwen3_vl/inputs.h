#pragma once

// The inputs of Qwen3-VL's blocks in a microbatch apart from its tokens: where each token stands, and which of them are
// images.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/models/qwen3_vl_spec.h"
#include "common/plan/models/vision_spec.h"
#include "worker/rank/nn/block.h"

namespace titan::model::qwen3_vl {

// Names of MicrobatchContext::tensors, apart from kImageRows (vision/image_tokens.h). The extension of the context is
// Qwen3VlImages.
constexpr char kPatches[] = "patches";         // [1, P, patch_values]: the patches of all images.
constexpr char kTokenRotation[] = "rotation";  // [B * T, head_dim], of token_rotation().

// The images of some rows, in the order of their tokens.
struct RowImages {
  std::vector<models::PatchGrid> grids;  // In patches, before they are merged.
  std::vector<int64_t> images_of_row;    // [B]: number of images in each row.
};

// Returns the position of every token on three axes (time, row, column), int64 [3, B, T], like get_rope_index() of
// transformers' Qwen3VLModel. Text counts up on all axes together. An image's tokens stay at the time at which it
// begins, and count its rows and columns from there. What follows continues after the largest number so far. Positions
// run through a whole row, because only differences within a document matter.
//   tokens: int64 [B, T] on the CPU, whole rows.
// Errors: InvalidArgument, naming the row, if its image tokens are not those of its images in this order;
// Unimplemented for a video token, because videos are not supported.
absl::StatusOr<at::Tensor> rope_positions(const at::Tensor& tokens, const RowImages& images,
                                          const models::Qwen3VlSpec& spec);

// Returns the rotation of each token by positions [3, B, T]: cosines, then sines, [B * T, head_dim] on their device,
// for the compute dtype `compute`.
at::Tensor token_rotation(const models::ModelSpec& text, const models::Qwen3VlSpec& spec, const at::Tensor& positions,
                          at::ScalarType compute);

// Adds kTokenRotation to a context whose tokens are on its device and may be a share of `tokens`
// (parallel::shard_microbatch()). `tokens`: int64 [B, row length] on the CPU. Errors: those of rope_positions().
absl::Status add_rotation(const models::ModelSpec& text, const models::Qwen3VlSpec& spec, const at::Tensor& tokens,
                          const RowImages& images, at::ScalarType compute, nn::MicrobatchContext& context);

// Adds kTokenRotation and kImageRows, for ranks that run the tower on all images. Errors: those of rope_positions().
absl::Status add_places(const models::ModelSpec& text, const models::Qwen3VlSpec& spec, const at::Tensor& tokens,
                        const RowImages& images, at::ScalarType compute, nn::MicrobatchContext& context);

}  // namespace titan::model::qwen3_vl
