#include "common/plan/models/activations.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace titan::models {
namespace {

constexpr int64_t kIndexBytes = 8;

// Adds up what the operations of one block, in order, keep for the backward pass.
class Tally {
 public:
  Tally(const ModelSpec& spec, const ActivationShape& shape)
      : spec_(spec),
        shape_(shape),
        e_(shape.element_bytes),
        wide_(e_ == 8 ? 8 : 4),
        ranks_(shape.tensor_ranks),
        expert_ranks_(shape.expert_tensor_ranks),
        n_(shape.tokens),
        own_(shape.sequence_parallel ? n_ / ranks_ : n_),
        exchanges_(shape.experts_elsewhere),
        cut_logits_(shape.loss_parallel && ranks_ > 1),
        scatters_(shape.sequence_parallel && ranks_ > 1),
        fused_norms_(shape.fused_norms) {}

  BlockActivations layer(int64_t index) {
    name_ = absl::StrCat("layers.", index, ".");
    result_.input = own_ * spec_.dim * e_;
    const bool before = spec_.norm_placement != NormPlacement::kPost;
    const bool after = spec_.norm_placement != NormPlacement::kPre;
    if (before) norm(own_, spec_.dim, /*keeps_input=*/false);
    if (before || scatters_) keep(n_ * spec_.dim * e_);  // Input of the first projections, or the block's own.
    spec_.attention == Attention::kLatent ? latent_attention() : grouped_attention();
    if (after) norm(own_, spec_.dim, /*keeps_input=*/true);
    if (before) norm(own_, spec_.dim, /*keeps_input=*/true);  // Its input is the activation between the layer's halves.
    keep(n_ * spec_.dim * e_);
    if (spec_.layer_has_experts(index)) {
      mixture_of_experts();
    } else {
      swiglu("feed_forward", n_, spec_.ffn_hidden / ranks_, spec_.mlp_bias);
      last_product("feed_forward.w2", n_, spec_.ffn_hidden / ranks_, spec_.dim, spec_.mlp_bias);
    }
    if (after) norm(own_, spec_.dim, /*keeps_input=*/true);
    return result_;
  }

  // Describes the final norm, the head and the loss, which are never recomputed.
  BlockActivations head() {
    result_.input = own_ * spec_.dim * e_;
    norm(own_, spec_.dim, /*keeps_input=*/false);
    keep(n_ * spec_.dim * e_);
    // The kept tensors are the softmax at full precision, or split logits with each token's maximum and sum, or for
    // logits in parts only these per-token values.
    const int64_t columns = spec_.vocab_size / (cut_logits_ ? ranks_ : 1);
    if (columns_at_once(spec_, shape_) < columns) {
      keep(n_ * (2 * wide_ + kIndexBytes + 1));
    } else {
      keep(cut_logits_ ? n_ * (columns * e_ + 2 * wide_) : n_ * columns * wide_);
      if (spec_.logit_softcap > 0 && !cut_logits_) keep(n_ * columns * e_);  // Split logits are kept after the cap.
    }
    result_.by_operation = result_.graph;
    return result_;
  }

 private:
  void keep(int64_t bytes) { result_.graph += bytes; }

  // Counts one factor per row, and the values before and after it unless the norm is one operation, as those with an
  // offset or over several ranks always are.
  void norm(int64_t rows, int64_t size, bool keeps_input, bool over_ranks = false) {
    const bool fused = fused_norms_ || over_ranks || spec_.norm_offset != 0;
    keep(rows * wide_);
    if (!fused) keep(rows * size * (e_ < wide_ ? 2 * wide_ : wide_));
    if (keeps_input && (fused || e_ == wide_)) keep(rows * size * e_);
  }

  bool adapted(const std::string& layer) const {
    return shape_.adapters && any_pattern_names(shape_.adapters->targets, name_ + layer);
  }
  void may_keep(int64_t rows, int64_t depth, int64_t columns) {
    result_.costly.push_back({rows * columns * e_, 2.0 * static_cast<double>(rows * depth * columns)});
  }

  // Counts a matrix product that recomputation can keep, and the two of its adapter. Recomputation by operation keeps
  // every second product of a block, not counting those with biases, and none of adapters.
  void product(const std::string& layer, int64_t rows, int64_t depth, int64_t columns, bool biased = false) {
    may_keep(rows, depth, columns);
    if (adapted(layer)) {
      may_keep(rows, depth, shape_.adapters->rank);
      may_keep(rows, shape_.adapters->rank, columns);
    }
    if (!biased && ++products_ % 2 == 1) result_.by_operation += rows * columns * e_;
  }

  // Counts a product with partial results that are summed over ranks. If a reduce-scatter sums them, its result is kept
  // instead. An adapter's term is added between the two, so a budget chooses from both.
  void last_product(const std::string& layer, int64_t rows, int64_t depth, int64_t columns, bool biased = false) {
    if (!scatters_) return product(layer, rows, depth, columns, biased);
    if (adapted(layer)) {
      const int64_t by_operation = result_.by_operation;
      product(layer, rows, depth, columns, biased);
      result_.by_operation = by_operation;
      return scatter();
    }
    if (!biased) ++products_;
    scatter(2.0 * static_cast<double>(rows * depth * columns));
  }

  void attention(int64_t heads, int64_t value_size) {
    const int64_t bytes = n_ * heads * (value_size * e_ + wide_);  // Includes the logsumexp.
    keep(bytes);
    result_.costly.push_back({bytes, 2.0 * static_cast<double>(n_ * heads * spec_.head_dim * shape_.keys)});
    result_.by_operation += bytes;
    last_product("attention.wo", n_, heads * value_size, spec_.dim, spec_.attention_bias && spec_.attention_out_bias);
  }

  void grouped_attention() {
    const int64_t heads = spec_.n_heads / ranks_, kv = spec_.n_kv_heads / ranks_;
    product("attention.wq", n_, spec_.dim, heads * spec_.head_dim, spec_.attention_bias);
    product("attention.wk", n_, spec_.dim, kv * spec_.head_dim, spec_.attention_bias);
    product("attention.wv", n_, spec_.dim, kv * spec_.v_head_dim, spec_.attention_bias);
    if (spec_.qk_norm_whole) {
      norm(n_, heads * spec_.head_dim, /*keeps_input=*/true, ranks_ > 1);
      norm(n_, kv * spec_.head_dim, /*keeps_input=*/true, ranks_ > 1);
    } else if (spec_.qk_norm) {
      norm(n_ * heads, spec_.head_dim, /*keeps_input=*/true);
      norm(n_ * kv, spec_.head_dim, /*keeps_input=*/true);
    }
    keep(n_ * ((heads + kv) * spec_.head_dim + kv * spec_.v_head_dim) * e_);
    attention(heads, spec_.v_head_dim);
  }

  void latent_attention() {
    const int64_t heads = spec_.n_heads / ranks_, latent = spec_.kv_lora_rank + spec_.qk_rope_head_dim;
    if (spec_.q_lora_rank == 0) {
      product("attention.wq", n_, spec_.dim, heads * spec_.head_dim);
    } else {
      product("attention.wq_a", n_, spec_.dim, spec_.q_lora_rank);
      norm(n_, spec_.q_lora_rank, /*keeps_input=*/true);
      keep(n_ * spec_.q_lora_rank * e_);
      product("attention.wq_b", n_, spec_.q_lora_rank, heads * spec_.head_dim);
    }
    product("attention.wkv_a", n_, spec_.dim, latent);
    norm(n_, spec_.kv_lora_rank, /*keeps_input=*/false);
    if (fused_norms_ || e_ == wide_ || spec_.norm_offset != 0)
      keep(n_ * latent * e_);  // Its input, together with the shared key.
    keep(n_ * spec_.kv_lora_rank * e_);
    const int64_t grown = heads * (spec_.qk_nope_head_dim + spec_.v_head_dim);
    product("attention.wkv_b", n_, spec_.kv_lora_rank, grown);
    keep(n_ * grown * e_);                       // The values are a part of it.
    keep(2 * n_ * heads * spec_.head_dim * e_);  // Queries and keys.
    attention(heads, spec_.v_head_dim);
  }

  // Counts the gate, its activation, the other half, and their product.
  void swiglu(const std::string& layer, int64_t rows, int64_t hidden, bool biased = false) {
    keep(4 * rows * hidden * e_);
    product(layer + ".w1", rows, spec_.dim, hidden, biased);
    product(layer + ".w3", rows, spec_.dim, hidden, biased);
  }

  // Counts the reduce-scatter over tensor ranks of what several layers add up, or, with `flops`, of one product.
  void scatter(double flops = 0) {
    if (!scatters_) return;
    result_.costly.push_back({own_ * spec_.dim * e_, flops});
    result_.by_operation += own_ * spec_.dim * e_;
  }

  // Counts received and returned rows; or, with gathered tokens, the tokens of all ranks with their choices, and this
  // rank's sums.
  void exchange(int64_t tokens, int64_t rows) {
    if (!exchanges_) return;
    const int64_t arrived = shape_.gathered_ranks * tokens;
    result_.by_operation +=
        arrived == 0 ? 2 * rows * spec_.dim * e_
                     : (arrived + tokens) * spec_.dim * e_ + arrived * spec_.moe->top_k * (wide_ + kIndexBytes);
  }

  void mixture_of_experts() {
    const MoeSpec& moe = *spec_.moe;
    const int64_t tokens = routed_tokens(shape_), choices = tokens * moe.top_k;
    const int64_t rows = expert_rows(moe, shape_);
    if (scatters_ && expert_ranks_ < ranks_)
      keep(tokens * spec_.dim * e_);         // The router's input, in addition to the
                                             // gathered one.
    keep(tokens * moe.num_experts * wide_);  // Scores of all experts.
    keep(choices * (wide_ + kIndexBytes));   // Scores and indices of the chosen experts.
    keep(rows * (wide_ + 3 * kIndexBytes));  // Positions of their rows.
    keep(rows * spec_.dim * e_);             // Input of the experts, and scaled rows or those to be weighted.
    keep(rows * spec_.dim * e_);
    const int64_t hidden = moe.hidden / expert_ranks_;
    keep((spec_.swiglu_limit > 0 ? 3 : 4) * rows * hidden * e_);
    exchange(tokens, rows);
    const bool one_sum = expert_ranks_ == ranks_;  // Routed and shared experts share one sum.
    if (moe.num_shared_experts > 0) {
      const int64_t shared = moe.hidden * moe.num_shared_experts / ranks_;
      swiglu("moe.shared_experts", n_, shared);
      constexpr char kLast[] = "moe.shared_experts.w2";
      one_sum ? product(kLast, n_, shared, spec_.dim) : last_product(kLast, n_, shared, spec_.dim);
    }
    if (one_sum) scatter();
  }

  const ModelSpec& spec_;
  const ActivationShape& shape_;
  const int64_t e_, wide_;
  const int64_t ranks_, expert_ranks_;
  const int64_t n_, own_;  // Tokens inside a layer and between layers.
  const bool exchanges_, cut_logits_, scatters_, fused_norms_;
  std::string name_;  // Name prefix of the layer.
  int64_t products_ = 0;
  BlockActivations result_;
};

}  // namespace

int64_t routed_tokens(const ActivationShape& shape) {
  // Tensor ranks that do not share experts split the tokens.
  return shape.expert_tensor_ranks < shape.tensor_ranks ? shape.tokens / shape.tensor_ranks : shape.tokens;
}

int64_t expert_rows(const MoeSpec& moe, const ActivationShape& shape) {
  const int64_t tokens = routed_tokens(shape), ranks = shape.gathered_ranks;
  return ranks == 0 ? tokens * moe.top_k : ranks * tokens * std::min(moe.top_k, moe.num_experts / ranks);
}

int64_t columns_at_once(const ModelSpec& spec, const ActivationShape& shape) {
  if (shape.tensor_ranks > 1 && !shape.loss_parallel) return spec.vocab_size;
  return logit_columns(shape.tokens, spec.vocab_size / shape.tensor_ranks, shape.element_bytes, shape.max_logit_bytes);
}

std::vector<BlockActivations> block_activations(const ModelSpec& spec, const ActivationShape& shape) {
  std::vector<BlockActivations> blocks(1);  // An embedding keeps only its tokens, which exist anyway.
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) blocks.push_back(Tally(spec, shape).layer(layer));
  blocks.push_back(Tally(spec, shape).head());
  return blocks;
}

}  // namespace titan::models
