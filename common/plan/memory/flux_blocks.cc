#include "common/plan/memory/flux_blocks.h"

#include <algorithm>

#include "common/plan/config/image_models.h"
#include "common/plan/config/model_kind.h"

namespace titan::memory {
namespace {

// Counts the tokens of one microbatch on a rank, and the widths of a rank's share of the layers. Results are bytes.
class FluxBlocks {
 public:
  FluxBlocks(const config::JobConfig& config, const models::FluxSpec& spec, const models::FluxShape& shape)
      : spec_(spec),
        e_(shape.element_bytes),
        wide_(e_ == 8 ? 8 : 4),
        context_(config.parallelism.context_parallel_degree),
        rings_(config.parallelism.context_parallel_rotate_method == "alltoall"),
        rows_(shape.rows),
        txt_(shape.rows * shape.txt),
        img_(shape.rows * shape.img),
        n_(txt_ + img_),
        dim_(spec.dim),
        own_(spec.dim / shape.tensor_ranks),
        mlp_(spec.mlp_hidden() / shape.tensor_ranks),
        carry_((rows_ + n_) * dim_ * e_) {}

  BlockMemory embed(const models::BlockActivations& kept) {
    BlockMemory block{.output = carry_, .graph = kept.graph};
    block.forward = block.graph + 2 * carry_;
    block.first_pass = 2 * carry_;
    const int64_t weights = dim_ * (spec_.in_channels + spec_.txt_width);
    block.backward = {{block.graph + bytes(txt_ + img_, dim_), weights}};
    block.for_weights = block.graph + carry_;
    return block;
  }

  BlockMemory double_block(const models::BlockActivations& kept) {
    start(kept);
    const int64_t parts = 2 * bytes(n_, own_);                           // Queries and keys of each stream,
    const int64_t joined = 2 * bytes(n_, own_), sums = bytes(n_, dim_);  // and of both; the streams' results.
    const int64_t first_half = bytes(n_, 2 * dim_ + 6 * own_);
    block_.forward = carry_ + std::max(block_.graph + parts + joined + sums + carry_,
                                       first_half + parts + joined + rotation() + exchange_forward());
    const int64_t heads = bytes(n_, 8 * own_);
    block_.first_pass = carry_ + heads +
                        std::max(rotation() + bytes(n_, own_) + exchange_forward(),
                                 bytes(n_, own_) + bytes(txt_, dim_) + bytes(img_, 3 * dim_ + 2 * mlp_));
    const int64_t weights_of_mlp = 2 * dim_ * mlp_, weights_of_proj = dim_ * own_, weights_of_qkv = 3 * dim_ * own_;
    int64_t left = block_.graph, weights = 0, gradients = 0;
    for (const int64_t tokens : {img_, txt_}) {
      at(left + gradients + bytes(tokens, 2 * dim_ + 2 * mlp_), weights + weights_of_mlp / 2);
      left -= bytes(tokens, 2 * mlp_ + 5 * dim_ + own_);
      weights += weights_of_mlp + weights_of_proj;
      gradients += bytes(tokens, dim_) + bytes(n_, own_);
    }
    // Gradients of both streams' inputs, and of attention's result.
    gradients = bytes(n_, dim_ + own_);
    at(left + gradients + attention_backward(), weights);
    left -= bytes(n_, 3 * own_);
    at(left + bytes(n_, dim_ + 3 * own_) + rotation() + bytes(n_, own_), weights);
    at(left + bytes(n_, dim_ + 3 * own_) + bytes(img_, 3 * own_ + 2 * dim_), weights + weights_of_qkv);
    finish(12 * dim_ * own_ + weights + 2 * weights_of_qkv + 6 * dim_ * own_);
    block_.for_weights = bytes(n_, 3 * dim_ + 4 * own_ + 2 * mlp_ + 2 * dim_);
    return block_;
  }

  BlockMemory single_block(const models::BlockActivations& kept) {
    start(kept);
    const int64_t fused = bytes(n_, 3 * own_ + mlp_), heads = bytes(n_, 2 * own_), joined = bytes(n_, own_ + mlp_);
    block_.forward = carry_ + std::max(block_.graph + heads + bytes(n_, mlp_) + bytes(n_, dim_) + carry_,
                                       bytes(n_, 2 * dim_) + fused + 2 * heads + rotation() + exchange_forward());
    const int64_t found = fused + heads + bytes(n_, own_);
    block_.first_pass =
        carry_ + std::max({found + rotation() + exchange_forward(), found + bytes(n_, mlp_) + joined + bytes(n_, dim_),
                           found + bytes(n_, mlp_ + 2 * dim_) + carry_});
    const int64_t second = dim_ * (own_ + mlp_), first = dim_ * (3 * own_ + mlp_);
    const int64_t result = bytes(n_, dim_);
    at(block_.graph + bytes(n_, own_ + mlp_), second);
    int64_t left = block_.graph - result - joined;
    at(left + joined + bytes(n_, mlp_) + fused, second);
    at(left + joined + fused + attention_backward(), second);
    left -= bytes(n_, 3 * own_);
    at(left + fused + bytes(n_, 3 * own_) + rotation() + bytes(n_, own_), second);
    left = bytes(n_, 2 * dim_);
    at(left + bytes(n_, 3 * own_) + 2 * fused, second);
    at(left + fused + bytes(n_, dim_), second + first);
    finish(second + first + 3 * dim_ * own_);
    block_.for_weights = bytes(n_, dim_ + 3 * own_ + mlp_ + own_ + mlp_ + dim_);
    return block_;
  }

  BlockMemory final_layer(const models::BlockActivations& kept) {
    start(kept);
    block_.output = 0;
    const int64_t errors = img_ * spec_.in_channels * wide_;
    block_.forward = carry_ + block_.graph + bytes(img_, spec_.in_channels) + 2 * errors;
    block_.first_pass = block_.forward;
    at(block_.graph + errors + bytes(img_, 3 * dim_), spec_.in_channels * dim_);
    finish(dim_ * (spec_.in_channels + 2 * own_));
    block_.for_weights = bytes(img_, dim_ + spec_.in_channels);
    return block_;
  }

 private:
  int64_t bytes(int64_t rows, int64_t columns) const { return rows * columns * e_; }

  void start(const models::BlockActivations& kept) {
    block_ = {.input = carry_, .output = carry_, .graph = kept.graph};
  }
  void at(int64_t activations, int64_t weights) { block_.backward.push_back({activations, weights}); }

  // The input's gradient is assembled from those of its parts, each with zeros for the others.
  void finish(int64_t weights) { at(2 * carry_ + bytes(n_, dim_), weights); }

  // A rotation computes at full precision: its input and result.
  int64_t rotation() const { return e_ == wide_ ? bytes(n_, own_) : 2 * n_ * own_ * wide_; }

  int64_t exchange_forward() const {
    if (context_ == 1) return 0;
    return bytes(n_, 2 * own_) * (rings_ ? 3 : 1 + context_) + 2 * n_ * own_ * wide_;
  }
  // Gradients of queries, keys and values.
  int64_t attention_backward() const {
    if (context_ == 1) return bytes(n_, 3 * own_);
    const int64_t pack = bytes(n_, 2 * own_), part = 2 * n_ * own_ * wide_;
    const int64_t exchange = rings_ ? 3 * pack + 3 * part : (1 + context_) * (pack + part);
    return n_ * 3 * own_ * wide_ + exchange;
  }

  const models::FluxSpec& spec_;
  const int64_t e_, wide_, context_;
  const bool rings_;
  const int64_t rows_, txt_, img_, n_;
  const int64_t dim_, own_, mlp_;
  const int64_t carry_;  // Bytes of the activations between blocks.
  BlockMemory block_;
};

}  // namespace

models::FluxShape flux_shape(const config::JobConfig& config) {
  const models::ActivationShape shape = activation_shape(config);
  const int64_t context = config.parallelism.context_parallel_degree;
  const int64_t txt = config.encoder.max_t5_encoding_len, img = config::image_tokens(config);
  return {.rows = microbatch_rows(config),
          .txt = txt / context,
          .img = img / context,
          .keys = txt + img,
          .tensor_ranks = shape.tensor_ranks,
          .element_bytes = shape.element_bytes,
          .fused_norms = shape.fused_norms};
}

int64_t encoder_bytes(const config::JobConfig& config) {
  const std::string type = config::encoder_dtype(config);
  return type == "float64" ? 8 : type == "float32" ? 4 : 2;
}

std::vector<models::BlockActivations> flux_activations(const config::JobConfig& config, const models::FluxSpec& spec) {
  const models::FluxShape shape = flux_shape(config);
  std::vector<models::BlockActivations> kept = models::block_activations(spec, shape);
  const int64_t element = shape.element_bytes, texts = shape.rows * shape.txt * spec.txt_width,
                latents = shape.rows * shape.img * spec.in_channels;
  // Parts of several rows are copied.
  const bool whole = shape.rows == 1 || config.parallelism.context_parallel_degree == 1;
  const bool same_texts = encoder_bytes(config) == element, same_latents = element >= 4;
  if (same_texts) kept.front().graph -= shape.rows * spec.vec_width * element;
  if (same_texts && whole) kept.front().graph -= texts * element;
  if (same_latents && whole) kept.front().graph -= latents * element;
  kept.back().graph += latents * std::max<int64_t>(element, 4);
  return kept;
}

std::vector<BlockMemory> flux_block_memory(const config::JobConfig& config, const models::FluxSpec& spec) {
  const models::FluxShape shape = flux_shape(config);
  const std::vector<models::BlockActivations> kept = flux_activations(config, spec);
  std::vector<BlockMemory> blocks;
  for (size_t i = 0; i < kept.size(); ++i) {
    FluxBlocks one(config, spec, shape);
    blocks.push_back(i == 0                                           ? one.embed(kept[i])
                     : i + 1 == kept.size()                           ? one.final_layer(kept[i])
                     : i <= static_cast<size_t>(spec.n_double_blocks) ? one.double_block(kept[i])
                                                                      : one.single_block(kept[i]));
  }
  return blocks;
}

}  // namespace titan::memory
