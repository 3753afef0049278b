#include "common/plan/models/sizes.h"

#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plan/models/flux.h"
#include "common/plan/models/parameter_list.h"
#include "common/plan/models/qwen3_vl.h"
#include "common/plan/models/vision.h"

namespace titan::models {
namespace {

void grouped_attention(const ModelSpec& spec, ParameterList& list) {
  const bool bias = spec.attention_bias;
  if (spec.attention_sinks) list.add("attention.sinks", {spec.n_heads});
  if (spec.qk_norm) {
    list.norm("attention.q_norm", spec.head_dim * (spec.qk_norm_whole ? spec.n_heads : 1));
    list.norm("attention.k_norm", spec.head_dim * (spec.qk_norm_whole ? spec.n_kv_heads : 1));
  }
  list.linear("attention.wq", spec.n_heads * spec.head_dim, spec.dim, bias);
  list.linear("attention.wk", spec.n_kv_heads * spec.head_dim, spec.dim, bias);
  list.linear("attention.wv", spec.n_kv_heads * spec.v_head_dim, spec.dim, bias);
  list.linear("attention.wo", spec.dim, spec.n_heads * spec.v_head_dim, bias && spec.attention_out_bias);
}

void latent_attention(const ModelSpec& spec, ParameterList& list) {
  if (spec.q_lora_rank == 0) {
    list.linear("attention.wq", spec.n_heads * spec.head_dim, spec.dim);
  } else {
    list.linear("attention.wq_a", spec.q_lora_rank, spec.dim);
    list.norm("attention.q_norm", spec.q_lora_rank);
    list.linear("attention.wq_b", spec.n_heads * spec.head_dim, spec.q_lora_rank);
  }
  list.linear("attention.wkv_a", spec.kv_lora_rank + spec.qk_rope_head_dim, spec.dim);
  list.norm("attention.kv_norm", spec.kv_lora_rank);
  list.linear("attention.wkv_b", spec.n_heads * (spec.qk_nope_head_dim + spec.v_head_dim), spec.kv_lora_rank);
  list.linear("attention.wo", spec.dim, spec.n_heads * spec.v_head_dim);
}

void mixture_of_experts(const ModelSpec& spec, ParameterList& list) {
  const MoeSpec& moe = *spec.moe;
  const int64_t experts = moe.num_experts;
  if (spec.swiglu_limit > 0) {  // Gate and up projections are fused and have biases.
    list.add("moe.experts.mlp1_weight", {experts, 2 * moe.hidden, spec.dim}, ParameterRole::kExpert);
    list.add("moe.experts.mlp1_bias", {experts, 2 * moe.hidden}, ParameterRole::kExpert);
    list.add("moe.experts.mlp2_weight", {experts, spec.dim, moe.hidden}, ParameterRole::kExpert);
    list.add("moe.experts.mlp2_bias", {experts, spec.dim}, ParameterRole::kExpert);
  } else {
    list.add("moe.experts.w1", {experts, moe.hidden, spec.dim}, ParameterRole::kExpert);
    list.add("moe.experts.w2", {experts, spec.dim, moe.hidden}, ParameterRole::kExpert);
    list.add("moe.experts.w3", {experts, moe.hidden, spec.dim}, ParameterRole::kExpert);
  }
  list.linear("moe.router.gate", experts, spec.dim, moe.gate_bias, ParameterRole::kRouter);
  if (moe.num_shared_experts > 0) {
    list.swiglu("moe.shared_experts", spec.dim, moe.hidden * moe.num_shared_experts, ParameterRole::kSharedExpert);
  }
}

// The blocks of a tower, then those of a decoder. The tower, the embedding and the first `entry_layers` layers make the
// first activations.
pipeline::ModelBlocks blocks_after(std::vector<std::string> tower, int64_t n_layers, int64_t entry_layers = 0) {
  const size_t entry = tower.size() + 1 + static_cast<size_t>(entry_layers);
  const std::vector<std::string> decoder = pipeline::ModelBlocks(n_layers).names();
  tower.insert(tower.end(), decoder.begin(), decoder.end());
  return {std::move(tower), entry};
}

int64_t active(const ModelSpec& spec, const ParameterSpec& tensor) {
  if (spec.reads_images() && is_vision_parameter(tensor.fqn)) return tensor.numel();
  if (tensor.role == ParameterRole::kEmbedding) return 0;  // The embedding is a lookup, not a matmul.
  if (tensor.role != ParameterRole::kExpert) return tensor.numel();
  return tensor.numel() * spec.moe->top_k / spec.moe->num_experts;
}

}  // namespace

int64_t ParameterSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<ParameterSpec> parameters(const ModelSpec& spec) {
  if (spec.flux) return parameters(*spec.flux);
  if (spec.other) return {};
  ParameterList list;
  if (spec.vision) list.append(parameters(*spec.vision));
  if (spec.qwen3_vl) list.append(parameters(spec.qwen3_vl->vision));
  list.add("tok_embeddings.weight", {spec.vocab_size, spec.dim}, ParameterRole::kEmbedding);
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    list.set_prefix(absl::StrCat("layers.", layer, "."));
    spec.attention == Attention::kLatent ? latent_attention(spec, list) : grouped_attention(spec, list);
    if (spec.layer_has_experts(layer)) {
      mixture_of_experts(spec, list);
    } else {
      list.swiglu("feed_forward", spec.dim, spec.ffn_hidden, ParameterRole::kDense, spec.mlp_bias);
    }
    const bool before = spec.norm_placement != NormPlacement::kPost, after = spec.norm_placement != NormPlacement::kPre;
    if (before) list.norm("attention_norm", spec.dim);
    if (after) list.norm("attention_post_norm", spec.dim);
    if (before) list.norm("ffn_norm", spec.dim);
    if (after) list.norm("ffn_post_norm", spec.dim);
  }
  list.set_prefix("");
  list.norm("norm", spec.dim);
  if (!spec.tied_embeddings) list.linear("output", spec.vocab_size, spec.dim);
  return list.take();
}

pipeline::ModelBlocks block_names(const ModelSpec& spec) {
  if (spec.flux) return block_names(*spec.flux);
  if (spec.other) return spec.other->blocks;
  if (spec.vision) return blocks_after(vision_block_names(*spec.vision), spec.n_layers);
  if (spec.qwen3_vl) {
    const Qwen3VlSpec& vl = *spec.qwen3_vl;
    return blocks_after(vision_block_names(vl.vision), spec.n_layers, vl.deepstack_layers());
  }
  return spec.n_layers;
}

std::string block_of(const ModelSpec& spec, const std::string& fqn) {
  if (spec.flux) return flux_block_of(fqn);
  if (spec.vision && is_vision_parameter(fqn)) return vision_block_of(fqn);
  if (spec.qwen3_vl && is_vision_parameter(fqn)) return vision_block_of(spec.qwen3_vl->vision, fqn);
  if (fqn.rfind("layers.", 0) == 0) return fqn.substr(0, fqn.find('.', 7));
  return fqn.rfind("tok_embeddings", 0) == 0 ? "tok_embeddings" : "output";
}

std::vector<BlockSize> block_sizes(const ModelSpec& spec) {
  std::vector<BlockSize> blocks;
  for (const ParameterSpec& tensor : parameters(spec)) {
    const std::string name = block_of(spec, tensor.fqn);
    if (blocks.empty() || blocks.back().name != name) blocks.push_back({name});
    BlockSize& block = blocks.back();
    block.params += tensor.numel();
    block.active_params += active(spec, tensor);
    if (tensor.role == ParameterRole::kExpert) block.expert_params += tensor.numel();
  }
  return blocks;
}

int64_t parameter_count(const ModelSpec& spec) {
  if (spec.other) return spec.other->parameters;
  int64_t count = 0;
  for (const BlockSize& block : block_sizes(spec)) count += block.params;
  return count;
}

int64_t reported_parameter_count(const ModelSpec& spec) {
  return parameter_count(spec) - (spec.tied_embeddings ? spec.vocab_size * spec.dim : 0);
}

int64_t flops_per_token(const ModelSpec& spec, int64_t seq_len) {
  if (spec.other) return spec.other->flops_per_unit;
  int64_t matmul_params = 0;
  for (const BlockSize& block : block_sizes(spec)) matmul_params += block.active_params;
  return 6 * matmul_params + 6 * spec.n_layers * spec.n_heads * (spec.head_dim + spec.v_head_dim) * seq_len;
}

mesh::Sizes split_sizes(const ModelSpec& spec) {
  if (spec.flux) return split_sizes(*spec.flux);
  mesh::Sizes sizes;
  sizes.n_heads = spec.n_heads;
  sizes.n_kv_heads = spec.attention == Attention::kLatent ? 0 : spec.n_kv_heads;
  sizes.vocab_size = spec.vocab_size;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    if (!spec.layer_has_experts(layer)) sizes.ffn_hidden = spec.ffn_hidden;
  }
  if (spec.moe.has_value()) {
    sizes.num_experts = spec.moe->num_experts;
    sizes.expert_hidden = spec.moe->hidden;
    sizes.shared_hidden = spec.moe->hidden * spec.moe->num_shared_experts;
  }
  return sizes;
}

}  // namespace titan::models
