#include <algorithm>

#include "common/plan/models/patch_tally.h"
#include "common/plan/models/vision_activations.h"

namespace titan::models {
namespace {

BlockActivations embeddings(const Qwen3VlVisionSpec& spec, const VisionShape& shape) {
  PatchTally tally(shape);
  tally.pixels(spec.patch_values());
  return tally.result;
}

// Counts the norm's result and the activation's input and result. A square of patches has as many numbers as its
// patches.
void add_merger(const Qwen3VlVisionSpec& spec, int64_t patches_of_norm, PatchTally& tally) {
  const int64_t patches = spec.merge * spec.merge, square = patches * spec.dim;
  tally.norm(spec.dim, patches_of_norm);
  tally.product(square, square, patches);
  tally.keep(2 * spec.dim);
  tally.product(square, spec.out_dim, patches);
}

// `carried`: columns of earlier results, which pass by.
BlockActivations layer(const Qwen3VlVisionSpec& spec, const VisionShape& shape, int64_t carried, bool merges) {
  PatchTally tally(shape);
  tally.result.input = tally.bytes(spec.dim + carried);
  tally.norm(spec.dim);
  tally.product(spec.dim, 3 * spec.dim);
  tally.keep(3 * spec.dim);  // The values are a part of the product.
  tally.keep(2 * spec.dim);  // Rotated queries and keys.
  tally.attention(spec.dim, spec.n_heads);
  tally.product(spec.dim, spec.dim);
  tally.feed_forward(spec.dim, spec.ffn_hidden);
  if (!merges) return tally.result;
  tally.keep(spec.dim);  // The result, which the merger's norm reads.
  add_merger(spec, spec.merge * spec.merge, tally);
  return tally.result;
}

BlockActivations last_merger(const Qwen3VlVisionSpec& spec, const VisionShape& shape, int64_t carried) {
  PatchTally tally(shape);
  tally.result.input = tally.bytes(spec.dim + carried);
  add_merger(spec, /*patches_of_norm=*/1, tally);
  return tally.result;
}

}  // namespace

std::vector<BlockActivations> block_activations(const Qwen3VlVisionSpec& spec, const VisionShape& shape) {
  const std::vector<int64_t>& deepstack = spec.deepstack_layers;
  const int64_t merged = spec.out_dim / (spec.merge * spec.merge);  // Columns of each patch.
  std::vector<BlockActivations> blocks{embeddings(spec, shape)};
  int64_t carried = 0;
  for (int64_t i = 0; i < spec.n_layers; ++i) {
    const bool merges = std::count(deepstack.begin(), deepstack.end(), i) > 0;
    blocks.push_back(layer(spec, shape, carried, merges));
    if (merges) carried += merged;
  }
  blocks.push_back(last_merger(spec, shape, carried));
  return blocks;
}

}  // namespace titan::models
