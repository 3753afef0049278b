#include "common/plan/memory/blocks.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/config/validate.h"
#include "common/plan/memory/deepstack.h"
#include "common/plan/memory/flux_blocks.h"
#include "common/plan/memory/tower.h"

namespace titan::memory {
namespace {

using mesh::Axis;

// Sizes of one microbatch on a rank, in bytes unless stated otherwise.
struct Sizes {
  Sizes(const config::JobConfig& config, const models::ModelSpec& model, const mesh::Mesh& mesh)
      : spec(model), shape(activation_shape(config)), e(shape.element_bytes), wide(e == 8 ? 8 : 4) {
    const int64_t tensor = shape.tensor_ranks;
    splits = tensor > 1;
    gathers = splits && shape.sequence_parallel;
    n = shape.tokens;
    whole = n * spec.dim * e;
    own = gathers ? whole / tensor : whole;
    heads = spec.n_heads / tensor;
    kv_heads = spec.attention == models::Attention::kLatent ? heads : spec.n_kv_heads / tensor;
    queries = n * heads * spec.head_dim;
    keys = n * kv_heads * spec.head_dim;
    values = n * kv_heads * spec.v_head_dim;
    mixed = n * heads * spec.v_head_dim;
    context = mesh.size(Axis::kContext);
    rings = config.parallelism.context_parallel_rotate_method == "alltoall";
    ffn_width = spec.ffn_hidden / tensor;
    hidden = n * ffn_width * e;
    if (!spec.moe) return;
    apart = shape.expert_tensor_ranks < tensor;
    const int64_t choices = models::expert_rows(*spec.moe, shape);
    rows = choices * spec.dim;
    all_tokens = shape.gathered_ranks * models::routed_tokens(shape) * spec.dim;
    expert_hidden = choices * spec.moe->hidden / shape.expert_tensor_ranks * e;
    shared_width = spec.moe->hidden * spec.moe->num_shared_experts / tensor;
    shared_hidden = n * shared_width * e;
  }

  const models::ModelSpec& spec;
  const models::ActivationShape shape;
  const int64_t e, wide;       // Bytes of an element, and of one at full precision.
  int64_t n = 0;               // Tokens.
  int64_t whole = 0, own = 0;  // Bytes of the activations inside a sub-block and between sub-blocks, on this rank.
  int64_t heads = 0, kv_heads = 0, context = 1;
  int64_t queries = 0, keys = 0, values = 0, mixed = 0;  // Elements.
  int64_t ffn_width = 0, shared_width = 0;               // Channels.
  int64_t hidden = 0, expert_hidden = 0, shared_hidden = 0;
  int64_t rows = 0;        // Elements of the routed rows.
  int64_t all_tokens = 0;  // Elements of the tokens of all expert ranks, if they are gathered.
  bool splits = false, gathers = false, apart = false, rings = false;
};

int64_t attention_weights(const Sizes& s) {
  const models::ModelSpec& m = s.spec;
  const int64_t out = m.dim * s.heads * m.v_head_dim;
  if (m.attention == models::Attention::kGrouped)
    return out + m.dim * (s.heads * m.head_dim + s.kv_heads * (m.head_dim + m.v_head_dim));
  const int64_t q = m.q_lora_rank == 0 ? m.dim * s.heads * m.head_dim : m.q_lora_rank * (m.dim + s.heads * m.head_dim);
  return out + q + m.dim * (m.kv_lora_rank + m.qk_rope_head_dim) +
         m.kv_lora_rank * s.heads * (m.qk_nope_head_dim + m.v_head_dim);
}

// Returns the bytes that an embedding keeps to put images in the places of tokens: a row's number and a flag for each.
int64_t kept_places(int64_t tokens) { return tokens * (8 + 1); }

class Layer {
 public:
  Layer(const Sizes& sizes, const models::BlockActivations& kept, bool experts, int64_t local_experts)
      : s_(sizes), experts_(experts), local_experts_(local_experts) {
    result_.input = result_.output = s_.own;
    result_.graph = kept.graph;
  }

  BlockMemory describe() {
    const int64_t second_half = (experts_ ? mixture_graph() : s_.whole + 4 * s_.hidden) + post_norm();
    const int64_t first_half = std::max<int64_t>(0, result_.graph - second_half);
    const int64_t partial = s_.splits ? s_.whole : 0;
    result_.forward = s_.own + std::max({result_.graph + s_.own + partial + (experts_ ? mixture_forward() : 0),
                                         first_half + attention_forward(), norm() + first_half});
    result_.first_pass =
        s_.own + std::max(attention_alone(), s_.own + (experts_ ? mixture_alone() : feed_forward_alone()));
    attention_backward(first_half, second_half, experts_ ? mixture_backward() : feed_forward_backward());
    result_.for_weights = factors();
    return result_;
  }

 private:
  // Returns the memory of a norm that consists of smaller operations.
  int64_t norm() const { return s_.shape.fused_norms && s_.spec.norm_offset == 0 ? 0 : 3 * s_.own / s_.e * s_.wide; }
  // Returns what the norm after a branch saves: its input and, if it consists of smaller operations, the normed rows.
  int64_t post_norm() const {
    if (s_.spec.norm_placement == models::NormPlacement::kPre) return 0;
    const bool fused = s_.shape.fused_norms || s_.spec.norm_offset != 0;
    return fused ? s_.own : (s_.e < s_.wide ? 2 : 1) * s_.own / s_.e * s_.wide + (s_.e < s_.wide ? 0 : s_.own);
  }
  int64_t rotation() const { return 2 * s_.queries * s_.wide; }
  int64_t qkv() const { return (s_.queries + s_.keys + s_.values) * s_.e; }
  // Gradients of queries, keys and values are summed at full precision, then converted one by one.
  int64_t qkv_gradients() const { return s_.e == s_.wide ? qkv() : qkv() / s_.e * s_.wide + s_.queries * s_.e; }
  int64_t pack() const { return (s_.keys + s_.values) * s_.e; }

  int64_t exchange_forward() const {
    if (s_.context == 1) return 0;
    return pack() * (s_.rings ? 3 : 1 + s_.context) + 2 * s_.mixed * s_.wide;
  }
  int64_t exchange_backward() const {
    if (s_.context == 1) return 0;
    const int64_t part = pack() / s_.e * s_.wide;
    return s_.rings ? 3 * pack() + 3 * part : (1 + s_.context) * pack() + (1 + s_.context) * part;
  }

  // Returns the bytes of `tensors` of the size of the scores that capped attention stores at a time
  // (worker/rank/nn/attention_softcap.cc), and of its operands at full precision.
  int64_t capped_scores(int64_t tensors) const {
    if (s_.spec.attention_softcap == 0) return 0;
    constexpr int64_t kMaxStoredScores = 1 << 24;
    const int64_t scores = std::min(s_.n * s_.heads * (s_.shape.keys / s_.context), kMaxStoredScores);
    return tensors * scores * s_.wide + (s_.e == s_.wide ? 0 : (s_.keys + s_.values) * s_.wide);
  }
  int64_t attention_forward() const { return std::max(rotation(), exchange_forward() + capped_scores(1)); }
  int64_t attention_alone() const {
    return s_.own + gathered() + qkv() + std::max(rotation(), s_.mixed * s_.e + exchange_forward() + capped_scores(1));
  }
  int64_t feed_forward_alone() const { return s_.whole + (s_.gathers ? s_.own : 0) + 4 * s_.hidden; }
  int64_t gathered() const { return s_.gathers ? s_.whole : 0; }
  bool clamped() const { return s_.spec.swiglu_limit > 0; }  // GPT-OSS's experts: two matrices, the first fused.

  int64_t shared() const { return s_.shared_hidden > 0 ? 4 * s_.shared_hidden : 0; }
  int64_t routed_bytes() const { return s_.rows * s_.e; }
  int64_t routed_wide() const { return s_.rows * s_.wide; }
  int64_t mixture_graph() const {
    return s_.whole + shared() + 2 * routed_bytes() + (clamped() ? 3 : 4) * s_.expert_hidden;
  }
  // Counts the sums over the chosen experts, at full precision.
  int64_t mixture_forward() const {
    if (s_.all_tokens > 0) return routed_bytes() + s_.all_tokens * (s_.e + 2 * s_.wide);
    return routed_bytes() + 2 * s_.whole / s_.e * s_.wide / (s_.apart ? s_.shape.tensor_ranks : 1);
  }
  int64_t mixture_alone() const {
    const int64_t spread = routed_bytes() + (s_.spec.moe->score_before_experts ? routed_bytes() + routed_wide() : 0);
    const int64_t computed = 2 * routed_bytes() + 4 * s_.expert_hidden;
    const int64_t combined = 2 * routed_bytes() + mixture_forward();
    return s_.whole + (s_.shared_hidden > 0 ? s_.whole + shared() : 0) + std::max({spread, computed, combined});
  }

  // Adds a moment of the backward pass. `activations`: bytes in addition to the graph, negative for its freed parts.
  void at(int64_t activations, int64_t weight_gradients) {
    result_.backward.push_back({result_.graph + activations, weight_gradients});
  }

  // Add the moments of the second half's backward pass. Return the number of weight elements whose gradients exist
  // afterwards.
  int64_t feed_forward_backward() {
    const int64_t matrix = s_.spec.dim * s_.ffn_width;
    at(gathered() + s_.hidden, matrix);  // The last product.
    at(2 * s_.hidden, matrix);           // The product of the two wide results.
    at(2 * s_.whole - 2 * s_.hidden, 3 * matrix);
    return 3 * matrix;
  }
  int64_t mixture_backward() {
    const models::MoeSpec& moe = *s_.spec.moe;
    const int64_t matrix = local_experts_ * s_.spec.dim * moe.hidden / s_.shape.expert_tensor_ranks;
    const int64_t shared_matrices = 3 * s_.spec.dim * s_.shared_width;
    const int64_t weights = 3 * matrix + shared_matrices + moe.num_experts * s_.spec.dim;
    // Gradients of rows as they are sent, as they are received, and in the experts' order.
    if (s_.all_tokens > 0) {
      at(gathered() + routed_bytes() + s_.all_tokens * (s_.e + 2 * s_.wide), 0);
    } else if (s_.shape.experts_elsewhere) {
      at(gathered() + 3 * routed_bytes(), 0);
    }
    at(gathered() + routed_bytes() + (clamped() ? 8 : 2) * s_.expert_hidden, matrix + shared_matrices);
    // The experts' graph is freed; their input's gradient is scaled at full precision.
    const int64_t scaling = moe.score_before_experts ? 2 * routed_wide() + routed_bytes() : routed_bytes();
    at(gathered() - shared() - (clamped() ? 3 : 4) * s_.expert_hidden + 2 * routed_bytes() + scaling, weights);
    return weights;
  }
  // `weights`: weight elements of the second half, whose backward pass comes first.
  void attention_backward(int64_t first_half, int64_t second_half, int64_t weights) {
    const int64_t out = s_.spec.dim * s_.heads * s_.spec.v_head_dim, mixed = s_.mixed * s_.e;
    at(norm() - second_half, weights);
    at(s_.own - second_half + gathered() + mixed, weights + out);
    at(s_.own - second_half + mixed + qkv_gradients() + exchange_backward() + capped_scores(3), weights + out);
    at(s_.own - second_half - mixed + rotation(), weights + out);  // Attention's saved tensors are freed.
    at(s_.own - result_.graph + std::min(first_half, 2 * s_.whole) + norm(), weights + attention_weights(s_));
  }

  // Returns the bytes of both factors of all weight gradients.
  int64_t factors() const {
    const models::ModelSpec& m = s_.spec;
    int64_t sum = s_.whole + (s_.queries + s_.mixed) * s_.e + s_.whole;
    if (m.attention == models::Attention::kLatent) {
      sum += s_.n *
             (2 * m.q_lora_rank + 2 * m.kv_lora_rank + m.qk_rope_head_dim +
              s_.heads * (m.qk_nope_head_dim + m.v_head_dim)) *
             s_.e;
    } else {
      sum += (s_.keys + s_.values) * s_.e;
    }
    if (!experts_) return sum + 2 * s_.whole + 3 * s_.hidden;
    sum += 2 * routed_bytes() + 3 * s_.expert_hidden + s_.whole;
    return s_.shared_hidden > 0 ? sum + s_.whole + 3 * s_.shared_hidden : sum;
  }

  const Sizes& s_;
  const bool experts_;
  const int64_t local_experts_;
  BlockMemory result_;
};

BlockMemory embedding(const Sizes& s) {
  BlockMemory block;
  block.output = s.own;
  const int64_t scaled = s.spec.embedding_scale == 1 ? 0 : s.own;
  block.forward = block.first_pass = s.own + std::max(s.splits ? 2 * s.whole : 0, scaled);
  block.backward = {{s.gathers ? s.whole : 0, s.spec.vocab_size / s.shape.tensor_ranks * s.spec.dim}};
  return block;
}

// Describes the embedding after a tower. It keeps, for each token, the row of the tower's results that takes its place
// and whether there is one. Context ranks gather the results and sum their gradients. Wider results make wider rows.
BlockMemory embedding(const Sizes& s, const TowerMemory& tower) {
  BlockMemory block = embedding(s);
  const int64_t tokens = s.own / s.e / s.spec.dim, row = tower.width * s.e, placed = tokens * row;
  const int64_t gathered = s.context > 1 ? tower.gathered_rows * row : 0;
  block.input = tower.rows * row;
  block.output = placed;
  block.graph = kept_places(tokens);
  // The embedded tokens, which are padded to wider rows, the chosen results, and the choice of both.
  const int64_t choice = 3 * placed + (placed > s.own ? s.own : 0);
  block.forward = block.first_pass = block.input + block.graph + gathered + std::max(choice, block.forward);
  const int64_t weights = block.backward.front().weight_gradients, summed = tower.gathered_rows * row;
  block.backward = {{block.graph + 2 * placed + summed, 0},
                    {block.graph + placed + summed + (s.context > 1 ? block.input : 0), weights},
                    {block.graph + s.own + block.backward.front().activations, weights}};
  return block;
}

// Returns the number of the decoder's first layers that get results of the tower, and the input of layer `index`.
int64_t deepstack_layers(const models::ModelSpec& spec, const TowerMemory& tower) { return tower.width / spec.dim - 1; }
DeepstackInput deepstack_input(const models::ModelSpec& spec, const models::ActivationShape& shape,
                               const TowerMemory& tower, int64_t index) {
  const int64_t tokens = shape.tokens / (shape.sequence_parallel ? shape.tensor_ranks : 1);
  return {.own = tokens * spec.dim * shape.element_bytes,
          .parts = deepstack_layers(spec, tower) + 1 - index,
          .keeps_own = shape.fused_norms || shape.element_bytes != 2};
}

// Distinguishes three cases. Whole logits: a copy at full precision and its softmax. Logits split over the tensor
// ranks: no second copy, since the gradient overwrites them, but wide copies of a few rows at a time. Logits in parts:
// one part with its wide copy, the weight's gradient assembled from the parts, and the input's gradient at full
// precision. If logits are capped, their gradient needs the capped ones and one more tensor of their size.
BlockMemory head(const Sizes& s, const models::BlockActivations& kept) {
  constexpr int64_t kRowsAtATime = int64_t{1} << 22;
  const int64_t weights = s.spec.vocab_size / s.shape.tensor_ranks * s.spec.dim;
  BlockMemory block{.input = s.own, .graph = kept.graph};
  if (const int64_t some = models::columns_at_once(s.spec, s.shape); some < s.spec.vocab_size / s.shape.tensor_ranks) {
    const int64_t part = s.n * some * (s.e == s.wide ? s.e : s.e + s.wide), sum = s.whole / s.e * s.wide;
    block.forward = block.first_pass = s.own + block.graph + part;
    const int64_t capped = s.spec.logit_softcap > 0 ? 2 * s.n * some * s.e : 0;
    block.backward = {{block.graph + sum + part + capped, weights}, {block.graph + sum + s.whole, weights}};
    block.for_weights = weights * s.e;
    block.defers = false;
    return block;
  }
  const bool cut = s.splits && s.shape.loss_parallel;
  const int64_t logits = s.n * s.spec.vocab_size / (cut ? s.shape.tensor_ranks : 1);
  const int64_t capped = s.spec.logit_softcap > 0 ? logits * s.e : 0;
  if (cut) {
    const int64_t chunk = 2 * std::min(logits, kRowsAtATime) * s.wide;
    block.forward = s.own + block.graph + std::max(chunk, capped);
    block.backward = {{block.graph + capped + std::max(chunk, capped), 0}, {block.graph + s.whole, weights}};
  } else {
    const int64_t pieces = s.splits ? 2 * logits / s.shape.tensor_ranks * s.e : 0;
    const int64_t precise = logits * s.wide;
    block.forward = s.own + block.graph + logits * s.e - capped + (s.e == s.wide ? 0 : precise) + pieces;
    block.backward = {{block.graph + 2 * precise, 0},
                      {block.graph - precise + logits * s.e + capped, 0},
                      {block.graph - precise - capped + logits * s.e + s.whole, weights}};
  }
  block.first_pass = block.forward;
  block.for_weights = s.whole + logits * s.e;
  return block;
}

// Returns the bytes that worker/rank/parallel/activation_checkpoint.cc keeps within the budget, a share of the bytes of
// all items.
int64_t within_budget(const std::vector<models::KnapsackItem>& items, double budget) {
  int64_t all = 0;
  for (const models::KnapsackItem& item : items) all += item.bytes;
  return models::best_within(models::pareto_front(items), static_cast<int64_t>(budget * static_cast<double>(all)))
      .bytes;
}

}  // namespace

int64_t microbatch_rows(const config::JobConfig& config) {
  const config::ParallelismSection& p = config.parallelism;
  return p.pipeline_parallel_degree > 1 ? p.pipeline_parallel_microbatch_size : config.training.local_batch_size;
}

models::ActivationShape activation_shape(const config::JobConfig& config) {
  const config::ParallelismSection& p = config.parallelism;
  const std::string& type =
      config.training.dtype == "float64" ? config.training.dtype : config.training.mixed_precision_param;
  const int64_t element = type == "float64" ? 8 : type == "float32" ? 4 : 2;
  const bool deals_experts = p.expert_parallel_degree > 1;
  return {.tokens = microbatch_rows(config) * config.training.seq_len / p.context_parallel_degree,
          .tensor_ranks = p.tensor_parallel_degree,
          .sequence_parallel = p.enable_sequence_parallel,
          .loss_parallel = !p.disable_loss_parallel,
          .expert_tensor_ranks = deals_experts ? p.expert_tensor_parallel_degree : p.tensor_parallel_degree,
          .experts_elsewhere = deals_experts,
          .gathered_ranks = deals_experts && p.expert_parallel_dispatcher == "allgather" ? p.expert_parallel_degree : 0,
          .keys = config.training.seq_len,
          .element_bytes = element,
          .max_logit_bytes = config::max_logit_bytes(config),
          .fused_norms = config.resources.device == "cuda",
          .adapters = config::adapters_of(config)};
}

namespace {

// Whether layers are recomputed as a whole, rather than by operation or by a memory budget.
bool by_whole_layers(const config::ActivationCheckpointSection& ac) {
  return ac.mode == "full" || (ac.mode == "selective" && ac.selective_ac_option != "op");
}

// Returns n if every n-th layer is recomputed. Ignores a list of layers.
int every_nth(const config::ActivationCheckpointSection& ac) {
  int every = 1;
  if (ac.mode == "selective" && ac.selective_ac_option != "op") (void)absl::SimpleAtoi(ac.selective_ac_option, &every);
  return std::max(every, 1);  // 0 also means every layer.
}

}  // namespace

bool is_recomputed(const config::ActivationCheckpointSection& ac, const LayerPosition& layer) {
  if (ac.mode == "none") return false;
  if (!ac.layers.empty()) return std::find(ac.layers.begin(), ac.layers.end(), layer.index) != ac.layers.end();
  return layer.number % every_nth(ac) == 0;
}

double recomputed_share(const config::ActivationCheckpointSection& ac, int64_t n_layers) {
  if (!by_whole_layers(ac)) return 0;
  if (ac.layers.empty()) return 1.0 / every_nth(ac);
  return static_cast<double>(ac.layers.size()) / static_cast<double>(std::max<int64_t>(n_layers, 1));
}

int64_t kept_bytes(const models::BlockActivations& layer, const config::ActivationCheckpointSection& ac,
                   const LayerPosition& place) {
  if (!is_recomputed(ac, place)) return layer.graph;
  if (ac.mode == "memory_budget") return within_budget(layer.costly, ac.memory_budget);
  return by_whole_layers(ac) ? 0 : layer.by_operation;
}

std::optional<LayerPosition> LayerCounter::next(size_t block) {
  const size_t entry = blocks_.entry();
  if (block == 0 || block + 1 == entry || block + 1 == blocks_.names().size()) return std::nullopt;
  LayerPosition position{.number = ++(block < entry ? entry_layers_ : layers_), .index = -1};
  absl::string_view name = blocks_.names()[block];
  if (absl::ConsumePrefix(&name, "layers.")) (void)absl::SimpleAtoi(name, &position.index);
  return position;
}

std::vector<models::BlockActivations> block_activations(const config::JobConfig& config,
                                                        const models::ModelSpec& spec) {
  if (spec.flux) return flux_activations(config, *spec.flux);
  const models::ActivationShape shape = activation_shape(config);
  std::vector<models::BlockActivations> blocks = models::block_activations(spec, shape);
  const std::optional<TowerMemory> tower = tower_memory(config, spec);
  if (!tower) {
    blocks.insert(blocks.begin(), tower_blocks(spec).size(), {});  // Not known.
    return blocks;
  }
  const int64_t tokens = shape.tokens / (shape.sequence_parallel ? shape.tensor_ranks : 1);
  models::BlockActivations& embedding = blocks.front();
  embedding.input = tower->rows * tower->width * shape.element_bytes;
  embedding.graph = kept_places(tokens);
  for (int64_t layer = 0; layer < deepstack_layers(spec, *tower); ++layer)
    add_deepstack(deepstack_input(spec, shape, *tower, layer), blocks[layer + 1]);
  // Tensor ranks sum their parts of the vocabulary.
  if (shape.sequence_parallel && shape.tensor_ranks > 1) {
    embedding.by_operation = tokens * spec.dim * shape.element_bytes;
    embedding.costly.push_back({embedding.by_operation, 0});
  }
  blocks.insert(blocks.begin(), tower->kept.begin(), tower->kept.end());
  return blocks;
}

std::vector<BlockMemory> block_memory(const config::JobConfig& config, const models::ModelSpec& spec,
                                      const mesh::Mesh& mesh) {
  if (spec.flux) return flux_block_memory(config, *spec.flux);
  const Sizes sizes(config, spec, mesh);
  const std::vector<models::BlockActivations> kept = models::block_activations(spec, sizes.shape);
  const int64_t experts = spec.moe ? spec.moe->num_experts / mesh.size(Axis::kExpert) : 0;
  const std::optional<TowerMemory> tower = tower_memory(config, spec);
  std::vector<BlockMemory> blocks;
  if (tower) blocks = tower->blocks;
  blocks.push_back(tower ? embedding(sizes, *tower) : embedding(sizes));
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    blocks.push_back(Layer(sizes, kept[layer + 1], spec.layer_has_experts(layer), experts).describe());
    if (tower && layer < deepstack_layers(spec, *tower))
      add_deepstack(deepstack_input(spec, sizes.shape, *tower, layer), blocks.back());
  }
  blocks.push_back(head(sizes, kept.back()));
  return blocks;
}

}  // namespace titan::memory
