#include "worker/rank/checkpoint/formats/onnx/onnx_decoder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/models/spec_checks.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_attention.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_masks.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_moe.h"

namespace titan::checkpoint::onnx {
namespace {

constexpr int64_t kFirstOpset = 21, kLastOpset = 25;
constexpr int64_t kStandardOpset = 23;  // The first with RMSNormalization, RotaryEmbedding and Attention.

absl::Status refuse(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("--format onnx: ", why));
}

// Returns the experts with the members that onnx_moe.cc computes, and those that do not concern inference.
models::MoeSpec computed_experts(const models::MoeSpec& moe) {
  return {.num_experts = moe.num_experts,
          .num_shared_experts = moe.num_shared_experts,
          .top_k = moe.top_k,
          .hidden = moe.hidden,
          .score_func = moe.score_func,
          .route_norm = moe.route_norm,
          .route_scale = moe.route_scale,
          .gate_bias = moe.gate_bias,
          .score_before_experts = moe.score_before_experts,
          .num_expert_groups = moe.num_expert_groups,
          .num_limited_groups = moe.num_limited_groups,
          .load_balance_coeff = moe.load_balance_coeff,
          .first_layer = moe.first_layer,
          .layer_step = moe.layer_step};
}

// Returns a spec with the members of `spec` that the graph computes. All others have their defaults, so that an option
// that is added to ModelSpec is refused until it is computed here.
models::ModelSpec computed(const models::ModelSpec& spec) {
  models::ModelSpec own;
  own.name = spec.name;
  own.flavor = spec.flavor;
  own.dim = spec.dim;
  own.n_layers = spec.n_layers;
  own.n_heads = spec.n_heads;
  own.n_kv_heads = spec.n_kv_heads;
  own.head_dim = spec.head_dim;
  own.v_head_dim = spec.v_head_dim;
  own.vocab_size = spec.vocab_size;
  own.ffn_hidden = spec.ffn_hidden;
  own.max_seq_len = spec.max_seq_len;
  own.norm_eps = spec.norm_eps;
  own.depth_init = spec.depth_init;
  own.eos_id = spec.eos_id;
  own.tied_embeddings = spec.tied_embeddings;
  own.attention = spec.attention;
  own.mask = spec.mask;  // Rows of a served model are one document.
  own.qk_norm = spec.qk_norm;
  own.attention_bias = spec.attention_bias;
  own.attention_sinks = spec.attention_sinks;
  own.sliding_window = spec.sliding_window;
  own.nope_layer_step = spec.nope_layer_step;
  own.attention_chunk = spec.attention_chunk;
  own.nope_ends_step = spec.nope_ends_step;
  own.query_temperature_floor = spec.query_temperature_floor;
  own.query_temperature_scale = spec.query_temperature_scale;
  own.rotated_qk_norm = spec.rotated_qk_norm;
  own.q_lora_rank = spec.q_lora_rank;
  own.kv_lora_rank = spec.kv_lora_rank;
  own.qk_nope_head_dim = spec.qk_nope_head_dim;
  own.qk_rope_head_dim = spec.qk_rope_head_dim;
  own.rope = spec.rope;
  own.rope_theta = spec.rope_theta;
  own.rope_scaling = spec.rope_scaling;
  own.yarn = spec.yarn;
  own.swiglu_limit = spec.swiglu_limit;
  if (spec.moe) own.moe = computed_experts(*spec.moe);
  return own;
}

absl::Status check_options(const models::ModelSpec& spec) {
  if (spec.reads_images()) return refuse(absl::StrCat(spec.name, " reads images; only models of text are supported"));
  if (spec.flux || spec.other) return refuse(absl::StrCat(spec.name, " is not a decoder of text"));
  const std::vector<models::SpecDifference> unknown = models::differences(models::to_json(spec), computed(spec));
  if (!unknown.empty())
    return refuse(absl::StrCat(unknown[0].name, " = ", unknown[0].there, " of the model is not supported"));
  if (spec.attention == models::Attention::kLatent && spec.v_head_dim > spec.head_dim)
    return refuse(absl::StrCat("v_head_dim = ", spec.v_head_dim, " above head_dim is not supported"));
  if (spec.swiglu_limit > 0 && spec.moe && spec.moe->score_before_experts)
    return refuse("moe.score_before_experts with swiglu_limit is not supported: experts with biases are not 0 at 0");
  return absl::OkStatus();
}

absl::Status check_opset(const Target& target) {
  if (target.opset < kFirstOpset || target.opset > kLastOpset) {
    return refuse(absl::StrCat("--onnx-opset ", target.opset, ": use ", target.microsoft ? kFirstOpset : kStandardOpset,
                               " to ", kLastOpset));
  }
  if (target.microsoft || target.opset >= kStandardOpset) return absl::OkStatus();
  return refuse(absl::StrCat("--onnx-opset ", target.opset, " has no RMSNormalization, RotaryEmbedding and Attention: ",
                             "use ", kStandardOpset, " or later, or --onnx-operators microsoft"));
}

absl::Status check_microsoft(const models::ModelSpec& spec) {
  constexpr int64_t kHeadMultiple = 8;
  if (spec.moe && spec.moe->score_before_experts && spec.moe->top_k > 1) {
    return refuse(absl::StrCat("ONNX Runtime's MoE cannot scale the inputs of ", spec.moe->top_k,
                               " experts (moe.score_before_experts): use --onnx-operators standard"));
  }
  if (spec.head_dim % kHeadMultiple == 0) return absl::OkStatus();
  return refuse(absl::StrCat("ONNX Runtime's GroupQueryAttention needs a head_dim that is a multiple of ",
                             kHeadMultiple, ", not ", spec.head_dim, ": use --onnx-operators standard"));
}

void add_inputs(Graph& graph, const models::ModelSpec& spec) {
  graph.inputs.push_back({kInputIds, Type::kInt64, {"batch_size", "sequence_length"}});
  graph.inputs.push_back({kAttentionMask, Type::kInt64, {"batch_size", "total_sequence_length"}});
  graph.inputs.push_back({kPositionIds, Type::kInt64, {"batch_size", "sequence_length"}});
  graph.outputs.push_back({"logits", Type::kFloat, {"batch_size", "sequence_length", spec.vocab_size}});
}

void add_rotation(const Builder& b, const nn::RopeOptions& rope, AttentionInputs& to) {
  const at::Tensor table = nn::rope_table(rope, at::kCPU, at::kFloat);
  const int64_t pairs = rope.head_dim / 2;
  const at::Tensor cos = table.is_complex() ? at::real(table) : table.narrow(1, 0, pairs);
  const at::Tensor sin = table.is_complex() ? at::imag(table) : table.narrow(1, pairs, pairs);
  to.cos = b.weights.add_value("rotation.cos", cos.contiguous(), b.target.type);
  to.sin = b.weights.add_value("rotation.sin", sin.contiguous(), b.target.type);
}

// Returns 1 + scale * ln(1 + floor((position + 1) / floor)), [B, S, 1].
std::string temperature(const Builder& b) {
  const auto real = [&](double value) { return b.graph.real(value, Type::kFloat); };
  const std::string place = b.op("Add", {b.cast(kPositionIds, Type::kFloat), real(1)});
  const std::string steps = b.op("Floor", {b.op("Div", {place, real(b.spec.query_temperature_floor)})});
  const std::string grown =
      b.op("Mul", {b.op("Log", {b.op("Add", {steps, real(1)})}), real(b.spec.query_temperature_scale)});
  return b.to_target(b.unsqueeze(b.op("Add", {grown, real(1)}), {2}), Type::kFloat);
}

std::string layer(const Builder& b, const AttentionInputs& inputs, int64_t index, const std::string& x) {
  const std::string fqn = absl::StrCat("layers.", index);
  const auto norm = [&](const std::string& value, const char* name) {
    return b.norm(value, b.weights.add(absl::StrCat(fqn, name), b.target.type));
  };
  b.graph.set_scope(fqn + ".attention");
  const std::string sum = b.op("Add", {x, attention(b, inputs, index, norm(x, ".attention_norm.weight"))});
  const bool experts = b.spec.layer_has_experts(index);
  b.graph.set_scope(fqn + (experts ? ".moe" : ".feed_forward"));
  const std::string normed = norm(sum, ".ffn_norm.weight");
  return b.op("Add", {sum, experts ? mixture_of_experts(b, fqn + ".moe", normed)
                                   : b.feed_forward(normed, fqn + ".feed_forward")});
}

void add_head(const Builder& b, const std::string& x) {
  b.graph.set_scope("output");
  const Type type = b.target.type;
  const std::string normed = b.norm(x, b.weights.add("norm.weight", type));
  const std::string head = b.spec.tied_embeddings ? b.transpose(b.weights.add("tok_embeddings.weight", type), {1, 0})
                                                  : b.weights.add("output.weight", type, Form::kTransposed);
  const std::string logits = b.op("MatMul", {normed, head});
  b.graph.add({.op = "Cast",
               .inputs = {logits},
               .attributes = {{"to", static_cast<int64_t>(Type::kFloat)}},
               .outputs = {"logits"}});
}

}  // namespace

absl::Status check_graph(const models::ModelSpec& spec, const Target& target) {
  TITAN_RETURN_IF_ERROR(check_opset(target));
  TITAN_RETURN_IF_ERROR(check_options(spec));
  return target.microsoft ? check_microsoft(spec) : absl::OkStatus();
}

absl::Status build_graph(const Builder& b, const Positions& positions) {
  TITAN_RETURN_IF_ERROR(check_graph(b.spec, b.target));
  add_inputs(b.graph, b.spec);
  b.graph.set_scope("inputs");
  Masks masks(b);
  AttentionInputs inputs{.masks = &masks, .latent_scale = positions.latent_scale};
  add_rotation(b, positions.rope, inputs);
  if (b.spec.query_temperature_floor > 0) inputs.temperature = temperature(b);
  std::string x = b.op("Gather", {b.weights.add("tok_embeddings.weight", b.target.type), kInputIds});
  for (int64_t index = 0; index < b.spec.n_layers; ++index) x = layer(b, inputs, index, x);
  add_head(b, x);
  const std::vector<std::string> unused = b.weights.unused();
  if (unused.empty()) return absl::OkStatus();
  return refuse(absl::StrCat("the graph has no place for the parameter ", unused[0]));
}

}  // namespace titan::checkpoint::onnx
