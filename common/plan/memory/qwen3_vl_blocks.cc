#include "common/plan/memory/qwen3_vl_blocks.h"

#include <algorithm>

#include "common/plan/memory/images.h"

namespace titan::memory {
namespace {

// Describes the blocks, in order, each from what it keeps. Results are bytes.
class Qwen3VlBlocks {
 public:
  Qwen3VlBlocks(const models::Qwen3VlVisionSpec& spec, const models::VisionShape& shape)
      : spec_(spec),
        shape_(shape),
        e_(shape.element_bytes),
        wide_(e_ == 8 ? 8 : 4),
        dim_(bytes(spec.dim)),
        exact_(dim_ / e_ * wide_),
        merged_(bytes(spec.out_dim / (spec.merge * spec.merge))) {}

  // The positions of all images are computed at full precision, one image after another, from the whole table, and then
  // put together and converted.
  BlockMemory embeddings(const models::BlockActivations& kept) const {
    const int64_t rows = spec_.position_side * spec_.position_side, table = rows * spec_.dim;
    const int64_t of_image = shape_.patches_of_image * spec_.dim * wide_;
    BlockMemory block{.output = dim_, .graph = kept.graph};
    const int64_t converted = e_ == wide_ ? 0 : dim_ + table * wide_;
    block.forward = block.first_pass = block.graph + std::max(3 * dim_, dim_ + 2 * exact_ + converted);
    block.backward = {{block.graph + (e_ == wide_ ? 0 : exact_) + 2 * of_image + 2 * table * wide_,
                       spec_.dim * spec_.patch_values()}};
    block.for_weights = block.graph + dim_ + table * e_;
    return block;
  }

  // `merges`: the layer's result also goes to the decoder.
  BlockMemory layer(const models::BlockActivations& kept, bool merges) {
    const int64_t hidden = bytes(spec_.ffn_hidden), carried = kept.input - dim_;
    BlockMemory block{.input = kept.input, .output = kept.input + (merges ? merged_ : 0), .graph = kept.graph};
    // The result and the columns of mergers are put together.
    const int64_t joined = merges ? merged_ + block.output : carried > 0 ? dim_ + block.output : 2 * dim_;
    const int64_t rotating = 5 * dim_ + rotation();
    const int64_t merging = merges ? 4 * dim_ + 2 * merged_ : 0;
    block.forward = block.input + std::max(block.graph + joined, rotating);
    block.first_pass = block.input + std::max({rotating, 4 * dim_ + 2 * hidden, merging, joined + (merges ? dim_ : 0)});
    add_backward(merges, carried > 0 ? block.input : 0, hidden, block);
    block.for_weights = 8 * dim_ + 2 * hidden + small_weights() * e_ + (merges ? 3 * dim_ + merged_ : 0);
    return block;
  }

  BlockMemory merger(const models::BlockActivations& kept) const {
    const auto deepstack = static_cast<int64_t>(spec_.deepstack_layers.size());
    const int64_t results = (1 + deepstack) * merged_;
    BlockMemory block{.input = kept.input, .output = results, .graph = kept.graph};
    block.forward = block.input + block.graph + std::max(2 * merged_, 2 * results);
    block.first_pass = block.input + std::max(3 * dim_ + 2 * merged_, 2 * results);
    // Each gradient of a part of the input is as wide as the input.
    const int64_t carried = deepstack > 0 ? block.input : 0;
    block.backward = {{block.graph + (deepstack > 1 ? 2 : 1) * carried + merged_, 0},
                      {block.graph + carried + dim_, last_matrix()},
                      {block.graph + carried + dim_, last_matrix() + square() * square()},
                      {block.input + carried + dim_, last_matrix() + square() * square()}};
    block.for_weights = 3 * dim_ + results;
    return block;
  }

 private:
  int64_t bytes(int64_t columns) const { return shape_.patches * columns * e_; }
  int64_t square() const { return spec_.dim * spec_.merge * spec_.merge; }  // Numbers of a square of patches.
  int64_t last_matrix() const { return square() * spec_.out_dim; }
  // Both halves of queries, their products with cosines and sines, and the results.
  int64_t rotation() const { return (e_ == wide_ ? 4 : 5) * exact_; }
  // Elements of norms and biases, of which a split backward pass computes the gradients in its first half.
  int64_t small_weights() const { return 9 * spec_.dim + spec_.ffn_hidden; }
  // Gradients of queries, keys and values are summed at full precision and then converted.
  int64_t attention_gradients() const { return e_ == wide_ ? 3 * dim_ : 3 * exact_ + dim_; }

  // `carried`: bytes of the input's gradient, which the columns of earlier mergers begin.
  void add_backward(bool merges, int64_t carried, int64_t hidden, BlockMemory& block) const {
    int64_t left = block.graph, weights = 0;
    const auto at = [&](int64_t activations, int64_t more_weights) {
      weights += more_weights;
      block.backward.push_back({left + carried + activations, weights});
    };
    if (merges) {
      at(merged_ + dim_, last_matrix());
      at(dim_, square() * square());
      left -=
          3 * dim_;  // Four tensors are freed, and the gradient of the result is now separate from that of the output.
    }
    const int64_t matrix = spec_.dim * spec_.dim, wide_matrix = spec_.dim * spec_.ffn_hidden;
    at(hidden, wide_matrix);  // The last product, and the activation.
    at(dim_ - hidden, wide_matrix);
    at(2 * dim_ - 2 * hidden, 0);  // The second norm, and the sum with its branch.
    at(-2 * hidden, matrix);       // Attention's last product.
    at(attention_gradients() - 2 * hidden, 0);
    left = 0;
    at(7 * dim_, 3 * matrix);  // Three gradients, and the sums of their layers' inputs.
    at(dim_ + block.input, 0);
  }

  const models::Qwen3VlVisionSpec& spec_;
  const models::VisionShape& shape_;
  const int64_t e_, wide_;
  const int64_t dim_, exact_;  // Bytes of the patches between blocks, and of as many numbers at full precision.
  const int64_t merged_;       // Bytes of a merger's result.
};

}  // namespace

TowerMemory qwen3_vl_memory(const config::JobConfig& config, const models::Qwen3VlVisionSpec& spec) {
  constexpr int64_t kPixelBytes = 4;
  const models::VisionShape shape = vision_shape(config);
  const int64_t rows = shape.patches / (spec.merge * spec.merge), wide = shape.element_bytes == 8 ? 8 : 4;
  const auto deepstack = static_cast<int64_t>(spec.deepstack_layers.size());
  TowerMemory tower{.kept = models::block_activations(spec, shape),
                    .rows = rows,
                    .gathered_rows = rows * config.parallelism.context_parallel_degree,
                    .width = (1 + deepstack) * spec.out_dim,
                    .held = shape.patches * (spec.patch_values() * kPixelBytes + spec.head_dim() * wide),
                    .rotates_tokens = true};
  Qwen3VlBlocks blocks(spec, shape);
  tower.blocks.push_back(blocks.embeddings(tower.kept.front()));
  for (int64_t i = 0; i < spec.n_layers; ++i) {
    const bool merges = std::count(spec.deepstack_layers.begin(), spec.deepstack_layers.end(), i) > 0;
    tower.blocks.push_back(blocks.layer(tower.kept[static_cast<size_t>(i) + 1], merges));
  }
  tower.blocks.push_back(blocks.merger(tower.kept.back()));
  return tower;
}

}  // namespace titan::memory
