#include "common/plan/memory/siglip2_blocks.h"

#include <algorithm>

#include "common/plan/memory/images.h"

namespace titan::memory {
namespace {

constexpr int64_t kPixelBytes = 4;

// Describes the blocks, each from what it keeps. Results are bytes.
class Siglip2Blocks {
 public:
  Siglip2Blocks(const models::VisionSpec& spec, const models::VisionShape& shape)
      : spec_(spec), shape_(shape), e_(shape.element_bytes), wide_(e_ == 8 ? 8 : 4), dim_(bytes(spec.dim)) {}

  // The patches' result, the positions and their sum exist together. Positions are computed at full precision, once for
  // images of one shape, from the whole table.
  BlockMemory embeddings(const models::BlockActivations& kept) {
    const int64_t table = spec_.position_side * spec_.position_side * spec_.dim;
    const int64_t of_image = shape_.patches_of_image * spec_.dim * (e_ == wide_ ? wide_ : wide_ + e_);
    const int64_t exact = e_ == wide_ ? 0 : table * wide_;
    BlockMemory block{.output = dim_, .graph = kept.graph};
    block.forward = block.first_pass = block.graph + 3 * dim_ + of_image + exact;
    block.backward = {{block.graph + 2 * of_image + exact, spec_.dim * spec_.patch_values() + table}};
    block.for_weights = block.graph + dim_ + table * e_;
    return block;
  }

  BlockMemory layer(const models::BlockActivations& kept) {
    const int64_t hidden = bytes(spec_.ffn_hidden);
    BlockMemory block{.input = dim_, .output = dim_, .graph = kept.graph};
    block.forward = block.input + block.graph + 2 * dim_;
    block.first_pass = block.input + std::max(7 * dim_ + logs(), 4 * dim_ + 2 * hidden);
    const int64_t matrix = spec_.dim * spec_.dim, wide_matrix = spec_.dim * spec_.ffn_hidden;
    block.backward = {
        {block.graph + hidden, wide_matrix},  // The last product, and the activation.
        {block.graph - hidden + dim_, 2 * wide_matrix},
        {block.graph - 2 * hidden + 2 * dim_, 2 * wide_matrix},  // The second norm, and the sum with its branch.
        {block.graph - 2 * hidden, 2 * wide_matrix + matrix},    // Attention's last product.
        {block.graph - 2 * hidden + attention_gradients(), 2 * wide_matrix + matrix},
        {7 * dim_, 2 * wide_matrix + 4 * matrix},  // Three gradients, and the sums of their layers' inputs.
    };
    block.for_weights = 8 * dim_ + 2 * hidden + small_weights() * e_;
    return block;
  }

  BlockMemory projector(const models::BlockActivations& kept) {
    const int64_t result = bytes(spec_.out_dim);
    BlockMemory block{.input = dim_, .output = result, .graph = kept.graph};
    block.forward = block.first_pass = block.input + block.graph + 2 * result;
    const int64_t last = spec_.dim * spec_.out_dim;
    block.backward = {{block.graph + dim_, last}, {block.graph, last + spec_.dim * spec_.dim}};
    block.for_weights = 3 * dim_ + result;
    return block;
  }

 private:
  int64_t bytes(int64_t columns) const { return shape_.patches * columns * e_; }
  int64_t logs() const { return shape_.patches * spec_.n_heads * wide_; }
  // Elements of norms and biases, of which a split backward pass computes the gradients in its first half.
  int64_t small_weights() const { return 9 * spec_.dim + spec_.ffn_hidden; }
  // Gradients of queries, keys and values are summed at full precision and then converted.
  int64_t attention_gradients() const { return e_ == wide_ ? 3 * dim_ : 3 * dim_ / e_ * wide_ + dim_; }

  const models::VisionSpec& spec_;
  const models::VisionShape& shape_;
  const int64_t e_, wide_;
  const int64_t dim_;  // Bytes of the activations between blocks.
};

}  // namespace

TowerMemory siglip2_memory(const config::JobConfig& config, const models::VisionSpec& spec) {
  const models::VisionShape shape = vision_shape(config);
  TowerMemory tower{.kept = models::block_activations(spec, shape),
                    .rows = shape.patches,
                    .gathered_rows = shape.patches * config.parallelism.context_parallel_degree,
                    .width = spec.out_dim,
                    .held = shape.patches * spec.patch_values() * kPixelBytes};
  Siglip2Blocks blocks(spec, shape);
  for (size_t i = 0; i < tower.kept.size(); ++i) {
    tower.blocks.push_back(i == 0                       ? blocks.embeddings(tower.kept[i])
                           : i + 1 == tower.kept.size() ? blocks.projector(tower.kept[i])
                                                        : blocks.layer(tower.kept[i]));
  }
  return tower;
}

}  // namespace titan::memory
