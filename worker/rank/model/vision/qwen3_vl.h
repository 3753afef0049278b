#pragma once

// The vision tower of Qwen3-VL (arXiv 2511.21631) as blocks of the engine. It differs from SigLIP 2: patches have two
// frames, positions are learned and also rotated by row and column, squares of patches become one token, and the
// results of some layers go to the language model too (DeepStack, arXiv 2406.04334).
//
// An image's patches are in the order of Qwen's processor: its squares of merge x merge patches row by row, and within
// a square row by row. A frame pair of a video is one image.
//
// Blocks pass on one tensor, so DeepStack's results travel in additional columns: a layer's merged result of P /
// merge^2 rows and out_dim columns is viewed as P rows, and appended to those of the patches.

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/qwen3_vl_vision.h"
#include "worker/rank/model/vision/images.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/nn/layer_norm.h"
#include "worker/rank/nn/layers.h"

namespace titan::model {

// Images of a microbatch, with what all layers need of their places. padded_patches counts merged patches.
struct Qwen3VlImages : Images {
  at::Tensor rotation;  // [P, head_dim]: cosines, then sines, of each patch (nn::apply_rope).
};

// Packs images whose sides are multiples of spec.merge. `compute` is the compute dtype.
Qwen3VlImages pack_qwen3_vl_images(std::vector<models::PatchGrid> grids, const models::Qwen3VlVisionSpec& spec,
                                   at::Device device, at::ScalarType compute);

using Qwen3VlImagesOf = std::function<const Qwen3VlImages&(const nn::MicrobatchContext&)>;

// Returns the images that are the extension of the context. Throws c10::Error if there are none.
const Qwen3VlImages& qwen3_vl_images_of(const nn::MicrobatchContext& context);

// Resizes the table [side * side, dim] to every grid by linear interpolation between its corners (align_corners =
// true), and returns the embeddings of all patches in Qwen's order, [P, dim], in the table's type.
at::Tensor interpolate_positions(const at::Tensor& table, const std::vector<models::PatchGrid>& grids, int64_t merge);

// "visual.patch_embed": maps patches [1, P, patch_values] (channel, frame, row, column) to [1, P, dim].
class Qwen3VlPatchEmbedding : public nn::Block {
 public:
  Qwen3VlPatchEmbedding(const models::Qwen3VlVisionSpec& spec, Qwen3VlImagesOf images_of);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  nn::Linear proj;
  nn::Parameter& pos_embed;  // [position_side^2, dim], row-major.

 private:
  const int64_t merge_;
  const Qwen3VlImagesOf images_of_;
};

// Makes one token of each square of patches: fc2(gelu(fc1(norm(x)))).
class PatchMerger {
 public:
  // `norm_after`: normalizes the merge^2 * dim numbers of a square together, instead of each patch.
  PatchMerger(const nn::Declare& declare, const std::string& fqn, const models::Qwen3VlVisionSpec& spec,
              bool norm_after);
  at::Tensor forward(const at::Tensor& input) const;  // [1, P, dim] -> [1, P / merge^2, out_dim]

  nn::LayerNorm norm;
  nn::Linear linear_fc1, linear_fc2;

 private:
  const int64_t square_;  // Numbers of a square of patches.
  const bool norm_after_;
};

// "visual.blocks.{index}": a pre-norm residual block, and the merger of a DeepStack layer.
class Qwen3VlVisionLayer : public nn::Block {
 public:
  Qwen3VlVisionLayer(const models::Qwen3VlVisionSpec& spec, int64_t index, Qwen3VlImagesOf images_of);
  // Maps [1, P, dim + columns] to the same, or to out_dim / merge^2 more columns after a DeepStack layer.
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  nn::LayerNorm norm1;
  nn::Linear qkv, proj;
  nn::LayerNorm norm2;
  nn::Linear linear_fc1, linear_fc2;
  std::optional<PatchMerger> deepstack;
  nn::AttentionCore core = nn::attend;

 private:
  at::Tensor attention(const at::Tensor& input, const Qwen3VlImages& images) const;

  const int64_t dim_, head_dim_;
  const Qwen3VlImagesOf images_of_;
};

// "visual.merger": maps [1, P, dim + columns] to [1, P / merge^2, (1 + DeepStack layers) * out_dim], the merged patches
// and then the results of the DeepStack layers.
class Qwen3VlMerger : public nn::Block {
 public:
  explicit Qwen3VlMerger(const models::Qwen3VlVisionSpec& spec);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  PatchMerger merger;

 private:
  const int64_t dim_;
  const int64_t deepstack_layers_;
};

// Returns the tower's blocks in order. InvalidArgument names the numbers of the spec that do not fit together.
absl::StatusOr<std::vector<std::unique_ptr<nn::Block>>> build_qwen3_vl_vision(const models::Qwen3VlVisionSpec& spec,
                                                                              const Qwen3VlImagesOf& images_of);

}  // namespace titan::model
