#include "absl/strings/match.h"
#include "tests/numerics/mesh_table/language.h"

namespace titan::testing {
namespace {

using models::Attention;

constexpr int64_t kInteger = 8;  // Bytes of an index.

// Counts elements of the compute type and, separately, bytes. N: tokens; D: dim; H, K: heads of queries and of keys on
// this rank; A: tokens between sub-blocks (a piece of N under sequence parallelism).
class BlockMemory {
 public:
  BlockMemory(const RankShare& share, int64_t microbatch)
      : share_(share),
        spec_(share.spec),
        microbatch_(microbatch),
        N(share.tokens),
        A(share.edge_tokens),
        D(spec_.dim),
        H(spec_.n_heads / share.tensor),
        K(spec_.n_kv_heads / share.tensor) {}

  int64_t for_backward(const std::string& block) {
    if (block == "tok_embeddings") {
      if (share_.tensor > 1) bytes_ += N * kInteger;  // Row numbers in this rank's piece of the vocabulary.
      return total();
    }
    elements_ += A * D;  // The block's input.
    if (block == "output") {
      head();
    } else if (share_.passes(block) == 1) {
      layer(block);
    } else {
      for (const Call& call : share_.calls(block, microbatch_)) {
        if (!call.is_saved) continue;
        elements_ += call.elements;
        bytes_ += call.integers * kInteger;
      }
    }
    return total();
  }

  int64_t for_weights(const std::string& block) {
    if (block == "tok_embeddings") return 0;
    for (const Part& part : share_.parts_of(block)) {
      if (part.shape.size() == 1 || absl::EndsWith(part.fqn, "_bias")) elements_ += part.numel();
    }
    if (block == "output") {
      const bool whole = share_.tensor > 1 && share_.parallelism.disable_loss_parallel;
      elements_ += N * D + N * spec_.vocab_size / (whole ? 1 : share_.tensor);
      return total();
    }
    factors_of_attention();
    if (share_.has_experts(block)) {
      factors_of_mixture(block);
    } else {
      factors_of_feed_forward(spec_.ffn_hidden / share_.tensor);
    }
    return total();
  }

 private:
  int64_t total() const { return elements_ * share_.bytes + bytes_; }

  // A norm of rows; its input and result are counted elsewhere. It saves one factor per row and the normed rows before
  // the weight, unless it is one operation: with an offset or over several ranks.
  void norm(int64_t rows, int64_t width, bool over_ranks = false) {
    elements_ += rows * (spec_.norm_offset != 0 || over_ranks ? 1 : 1 + width);
  }

  bool gathers() const { return share_.tensor > 1 && share_.sequence; }

  // input -> norm -> attention -> norm -> sum -> norm -> feed-forward -> norm, of which a layer has those before or
  // after its branches, or all.
  void layer(const std::string& name) {
    const int64_t number = RankShare::layer_number(name);
    const bool before = spec_.norm_placement != models::NormPlacement::kPost;
    const bool after = spec_.norm_placement != models::NormPlacement::kPre;
    if (before) norm(A, D);
    if (before || gathers()) elements_ += N * D;  // The normed input, gathered.
    if (spec_.attention == Attention::kLatent) {
      latent_attention();
    } else {
      grouped_attention(number);
    }
    if (share_.context > 1 && spec_.layer_has_positions(number)) rotations();
    elements_ += N * H * (spec_.v_head_dim + 1);  // The result, which the last product reads, and its denominators.
    if (after) {
      elements_ += A * D;  // The result of attention.
      norm(A, D);
    }
    if (before) {
      elements_ += A * D;  // The sum.
      norm(A, D);
    }
    if (share_.has_experts(name)) {
      mixture(name);
    } else {
      elements_ += N * D;
      feed_forward(N, spec_.ffn_hidden / share_.tensor);
    }
    if (after) {
      elements_ += A * D;
      norm(A, D);
    }
  }

  // Adds queries, keys and values as attention reads them, and the inputs of normed heads.
  void grouped_attention(int64_t layer) {
    const int64_t head = spec_.head_dim;
    elements_ += N * (H + K) * head + N * K * spec_.v_head_dim;
    if (spec_.qk_norm_whole) {
      norm(N, H * head, share_.tensor > 1);
      norm(N, K * head, share_.tensor > 1);
      elements_ += N * (H + K) * head;
    } else if (spec_.qk_norm) {
      norm(N * (H + K), head);
      elements_ += N * (H + K) * head;
    }
    if (spec_.layer_has_positions(layer)) {
      if (spec_.rotated_qk_norm) elements_ += N * (H + K) * (head + 1);
    } else if (spec_.query_temperature_floor > 0) {
      elements_ += share_.job.config.training.seq_len / share_.context;
    }
  }

  // Queries and keys are joined from two parts each; values are a part of the latent's projection.
  void latent_attention() {
    const int64_t rank = spec_.kv_lora_rank;
    if (spec_.q_lora_rank > 0) {
      norm(N, spec_.q_lora_rank);
      elements_ += 2 * N * spec_.q_lora_rank;  // Before and after the norm.
    }
    norm(N, rank);
    elements_ += N * (rank + spec_.qk_rope_head_dim) + N * rank;
    elements_ += N * H * (spec_.qk_nope_head_dim + spec_.v_head_dim);
    elements_ += 2 * N * H * spec_.head_dim;
  }

  // A rank with a part of each row holds the rows of the rotation table for its positions, for queries and for keys.
  void rotations() {
    const int64_t of_head = spec_.rotary_dim > 0 ? spec_.rotary_dim : spec_.head_dim;
    const int64_t width = spec_.attention == Attention::kLatent ? spec_.qk_rope_head_dim : of_head;
    elements_ += 2 * (share_.job.config.training.seq_len / share_.context) * width;
  }

  // Adds both wide results, the gate's activation, and the product of the two.
  void feed_forward(int64_t rows, int64_t hidden) { elements_ += 4 * rows * hidden; }

  int64_t expert_hidden() const { return spec_.moe->hidden / (share_.apart ? 1 : share_.tensor); }
  int64_t shared_hidden() const { return spec_.moe->num_shared_experts * spec_.moe->hidden / share_.tensor; }
  // Whether the shared experts gather the tokens that the router reads in pieces.
  bool gathers_split_tokens() const { return share_.apart && share_.sequence; }

  void mixture(const std::string& name) {
    const models::MoeSpec& moe = *spec_.moe;
    const int64_t n = share_.routed_tokens, choices = n * moe.top_k;
    const int64_t rows = share_.received(name, microbatch_);
    elements_ += gathers_split_tokens() ? A * D : N * D;

    // The router: all scores, the chosen experts, their scores before and after the division by their sum.
    elements_ += n * moe.num_experts + choices;
    bytes_ += choices * kInteger;
    if (moe.route_norm) elements_ += choices + n;
    // The order of the rows in both directions, and the order of the received rows unless they belong to one expert.
    bytes_ += 2 * choices * kInteger;
    if (share_.expert > 1 && moe.num_experts > share_.expert) bytes_ += 2 * rows * kInteger;
    // The scores' gradient reads the rows before or after the experts. Without an exchange the rows before them are the
    // experts' input, unless they are weighted.
    elements_ += choices * D;
    elements_ += rows * D + (spec_.swiglu_limit > 0 ? 3 : 4) * rows * expert_hidden();

    if (moe.num_shared_experts == 0) return;
    if (gathers_split_tokens()) elements_ += N * D;
    feed_forward(N, shared_hidden());
  }

  void head() {
    norm(A, D);
    elements_ += N * D;
    if (share_.tensor == 1 || share_.parallelism.disable_loss_parallel) {
      elements_ += N * spec_.vocab_size;                               // Logarithms of the probabilities.
      if (spec_.logit_softcap > 0) elements_ += N * spec_.vocab_size;  // Capped logits.
      return;
    }
    elements_ += N * spec_.vocab_size / share_.tensor + 3 * N;  // Logits, maxima, sums, labels' logits.
    bytes_ += N * kInteger + N;                                 // Local labels, and the mask of ignored ones.
  }

  void factors_of_attention() {
    elements_ += N * D;
    if (spec_.attention == Attention::kLatent) {
      if (spec_.q_lora_rank > 0) elements_ += 2 * N * spec_.q_lora_rank;
      elements_ += N * H * spec_.head_dim;
      elements_ += N * (2 * spec_.kv_lora_rank + spec_.qk_rope_head_dim);
      elements_ += N * H * (spec_.qk_nope_head_dim + spec_.v_head_dim);
    } else {
      elements_ += N * (H + K) * spec_.head_dim + N * K * spec_.v_head_dim;
    }
    elements_ += N * H * spec_.v_head_dim + N * D;
  }

  void factors_of_feed_forward(int64_t hidden) { elements_ += N * D + 3 * N * hidden + N * D; }

  void factors_of_mixture(const std::string& name) {
    const models::MoeSpec& moe = *spec_.moe;
    const int64_t rows = share_.received(name, microbatch_);
    elements_ += share_.routed_tokens * moe.num_experts;
    elements_ += 2 * rows * D + 3 * rows * expert_hidden();
    if (gathers_split_tokens() || moe.num_shared_experts == 0) elements_ += gathers_split_tokens() ? A * D : N * D;
    if (moe.num_shared_experts > 0) factors_of_feed_forward(shared_hidden());
  }

  const RankShare& share_;
  const models::ModelSpec& spec_;
  const int64_t microbatch_;
  const int64_t N, A, D, H, K;
  int64_t elements_ = 0, bytes_ = 0;
};

}  // namespace

int64_t language_bytes_for_backward(const RankShare& share, const std::string& block, int64_t microbatch) {
  return BlockMemory(share, microbatch).for_backward(block);
}

int64_t language_bytes_for_weights(const RankShare& share, const std::string& block, int64_t microbatch) {
  return BlockMemory(share, microbatch).for_weights(block);
}

}  // namespace titan::testing
