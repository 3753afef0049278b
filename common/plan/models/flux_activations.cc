#include "common/plan/models/flux.h"

namespace titan::models {
namespace {

// Adds up what the operations of one block keep for the backward pass.
class FluxTally {
 public:
  FluxTally(const FluxSpec& spec, const FluxShape& shape)
      : spec_(spec),
        shape_(shape),
        e_(shape.element_bytes),
        wide_(e_ == 8 ? 8 : 4),
        dim_(spec.dim),
        own_dim_(spec.dim / shape.tensor_ranks),
        own_mlp_(spec.mlp_hidden() / shape.tensor_ranks),
        heads_(spec.n_heads / shape.tensor_ranks),
        txt_(shape.rows * shape.txt),
        img_(shape.rows * shape.img) {}

  BlockActivations embed() {
    keep(txt_, spec_.txt_width);
    keep(img_, spec_.in_channels);
    vector_layers(spec_.time_channels);
    vector_layers(spec_.vec_width);
    if (spec_.guidance_embed) vector_layers(spec_.time_channels);
    return result_;
  }

  BlockActivations double_block() {
    result_.input = carry();
    keep(shape_.rows, dim_);  // The vector after its activation.
    for (const int64_t tokens : {img_, txt_}) {
      modulation(6);
      layer_norm(tokens);
      product(tokens, dim_, 3 * own_dim_);
      if (norms_keep_input()) keep(tokens, 3 * own_dim_);  // The product's result, with values next to their input.
      keep(tokens, own_dim_);                              // Values next to those of the other stream.
      head_norms(tokens);
    }
    attention(txt_ + img_);
    for (const int64_t tokens : {img_, txt_}) {
      if (shape_.rows > 1) keep(tokens, own_dim_);  // The stream's part of attention's result, of one row a view,
      product(tokens, own_dim_, dim_);
      keep(tokens, dim_);  // its projection, which the gate multiplies,
      keep(tokens, dim_);  // and the sum with it.
      layer_norm(tokens);
      product(tokens, dim_, own_mlp_);
      keep(tokens, 2 * own_mlp_);  // The activation's input and result.
      product(tokens, own_mlp_, dim_);
      keep(tokens, dim_);
    }
    return result_;
  }

  BlockActivations single_block() {
    const int64_t tokens = txt_ + img_;
    result_.input = carry();
    keep(shape_.rows, dim_);
    modulation(3);
    layer_norm(tokens);
    product(tokens, dim_, 3 * own_dim_ + own_mlp_);
    keep(tokens, 3 * own_dim_ + own_mlp_);  // The whole result, of which attention and the activation keep parts.
    head_norms(tokens);
    attention(tokens);
    keep(tokens, own_dim_ + own_mlp_);
    product(tokens, own_dim_ + own_mlp_, dim_);
    keep(tokens, dim_);
    return result_;
  }

  // Never recomputed.
  BlockActivations final_layer() {
    result_.input = carry();
    keep(shape_.rows, dim_);
    modulation(2);
    layer_norm(img_);
    result_.by_operation = result_.graph;
    return result_;
  }

 private:
  void keep(int64_t rows, int64_t columns) { result_.graph += rows * columns * e_; }
  int64_t carry() const { return (shape_.rows + txt_ + img_) * dim_ * e_; }

  // Counts a matrix product that recomputation can keep. Recomputation by operation keeps none, because all have
  // biases.
  void product(int64_t rows, int64_t depth, int64_t columns) {
    result_.costly.push_back({rows * columns * e_, 2.0 * static_cast<double>(rows * depth * columns)});
  }

  // Counts both layers' inputs, and that of the activation between them.
  void vector_layers(int64_t width) { keep(shape_.rows, width + 2 * dim_); }

  // Counts one plus the scale of each norm, and all parts if there are gates among them.
  void modulation(int64_t parts) {
    keep(shape_.rows, dim_ * (parts == 2 ? 1 : parts / 3 + parts));
    product(shape_.rows, dim_, parts * dim_ / shape_.tensor_ranks);
  }

  // Counts the mean and the deviation of each token, its normed values, and the modulated ones that a product reads.
  void layer_norm(int64_t tokens) {
    result_.graph += 2 * tokens * wide_;
    keep(tokens, 2 * dim_);
  }

  // Whether the norms of queries and keys keep their input, and not a copy of it at full precision.
  bool norms_keep_input() const { return shape_.fused_norms || e_ == wide_; }

  // Counts the norms of queries and keys, without their input: one factor per head, and the normed values if the norm
  // is not one operation.
  void head_norms(int64_t tokens) {
    result_.graph += 2 * tokens * heads_ * wide_;
    if (!shape_.fused_norms) result_.graph += 2 * tokens * own_dim_ * (e_ < wide_ ? 2 * wide_ : wide_);
  }

  // Counts rotated queries and keys, the result, and the logs of the denominators.
  void attention(int64_t tokens) {
    const int64_t keys = shape_.keys > 0 ? shape_.keys : shape_.txt + shape_.img;
    const int64_t bytes = tokens * (own_dim_ * e_ + heads_ * wide_);
    keep(tokens, 2 * own_dim_);
    result_.graph += bytes;
    result_.by_operation += bytes;
    result_.costly.push_back({bytes, 4.0 * static_cast<double>(tokens * own_dim_ * keys)});
  }

  const FluxSpec& spec_;
  const FluxShape& shape_;
  const int64_t e_, wide_;
  const int64_t dim_, own_dim_, own_mlp_, heads_;
  const int64_t txt_, img_;  // Tokens of all rows.
  BlockActivations result_;
};

}  // namespace

std::vector<BlockActivations> block_activations(const FluxSpec& spec, const FluxShape& shape) {
  std::vector<BlockActivations> blocks{FluxTally(spec, shape).embed()};
  for (int64_t i = 0; i < spec.n_double_blocks; ++i) blocks.push_back(FluxTally(spec, shape).double_block());
  for (int64_t i = 0; i < spec.n_single_blocks; ++i) blocks.push_back(FluxTally(spec, shape).single_block());
  blocks.push_back(FluxTally(spec, shape).final_layer());
  return blocks;
}

}  // namespace titan::models
