#include "common/plan/models/vision_activations.h"

#include "common/plan/models/patch_tally.h"

namespace titan::models {
namespace {

BlockActivations embeddings(const VisionSpec& spec, const VisionShape& shape) {
  PatchTally tally(shape);
  tally.pixels(spec.patch_values());
  return tally.result;
}

BlockActivations layer(const VisionSpec& spec, const VisionShape& shape) {
  PatchTally tally(shape);
  tally.result.input = tally.bytes(spec.dim);
  tally.norm(spec.dim);
  for (int i = 0; i < 3; ++i) tally.product(spec.dim, spec.dim);
  tally.keep(3 * spec.dim);
  tally.attention(spec.dim, spec.n_heads);
  tally.product(spec.dim, spec.dim);
  tally.feed_forward(spec.dim, spec.ffn_hidden);
  return tally.result;
}

BlockActivations projector(const VisionSpec& spec, const VisionShape& shape) {
  PatchTally tally(shape);
  tally.result.input = tally.bytes(spec.dim);
  tally.norm(spec.dim);
  tally.product(spec.dim, spec.dim);
  tally.keep(2 * spec.dim);  // The activation's input and result.
  tally.product(spec.dim, spec.out_dim);
  return tally.result;
}

}  // namespace

std::vector<BlockActivations> block_activations(const VisionSpec& spec, const VisionShape& shape) {
  std::vector<BlockActivations> blocks{embeddings(spec, shape)};
  for (int64_t i = 0; i < spec.n_layers; ++i) blocks.push_back(layer(spec, shape));
  blocks.push_back(projector(spec, shape));
  return blocks;
}

}  // namespace titan::models
