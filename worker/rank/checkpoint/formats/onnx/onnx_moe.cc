#include "worker/rank/checkpoint/formats/onnx/onnx_moe.h"

#include <limits>

namespace titan::checkpoint::onnx {
namespace {

constexpr double kSlope = 1.702;  // GPT-OSS's gate is g * sigmoid(1.702 g).

std::string expand_like(const Builder& b, double value, const std::string& like) {
  return b.op("Expand", {b.graph.real(value, Type::kFloat), b.op("Shape", {like})});
}

// Returns {values, indices} of the k largest along the last dim, [..., k] both.
std::vector<std::string> top_k(const Builder& b, const std::string& x, int64_t k) {
  return b.graph.add_with_outputs(
      {.op = "TopK", .inputs = {x, b.graph.integers({k})}, .attributes = {{"axis", int64_t{-1}}}}, 2);
}

std::string scatter(const Builder& b, const std::string& indices, const std::string& values, const std::string& like) {
  return b.graph.add({.op = "ScatterElements",
                      .inputs = {expand_like(b, 0, like), indices, values},
                      .attributes = {{"axis", int64_t{1}}}});
}

// Only experts of the strongest groups can be chosen (worker/rank/nn/moe.cc). scores [N, experts]
std::string limit_to_groups(const Builder& b, const std::string& scores) {
  const models::MoeSpec& moe = *b.spec.moe;
  const std::string grouped = b.reshape(scores, {-1, moe.num_expert_groups, moe.num_experts / moe.num_expert_groups});
  const std::string strength = moe.score_func == "softmax" ? b.graph.add({.op = "ReduceMax",
                                                                          .inputs = {grouped, b.graph.integers({-1})},
                                                                          .attributes = {{"keepdims", int64_t{0}}}})
                                                           : b.sum(top_k(b, grouped, 2)[0], -1, false);
  const std::string kept = top_k(b, strength, moe.num_limited_groups)[1];
  const std::string flags = scatter(b, kept, expand_like(b, 1, kept), strength);
  const std::string inside = b.unsqueeze(b.cast(flags, Type::kBool), {2});
  const std::string outside = b.graph.real(-std::numeric_limits<double>::infinity(), Type::kFloat);
  return b.reshape(b.op("Where", {inside, grouped, outside}), {-1, moe.num_experts});
}

// Returns the gate values of all experts, float32 [N, experts], 0 for those that a token did not choose. The router
// computes in float32. tokens [N, dim]
std::string gate_values(const Builder& b, const std::string& fqn, const std::string& tokens) {
  const models::MoeSpec& moe = *b.spec.moe;
  const std::string gate = fqn + ".router.gate";
  std::string logits = b.op("MatMul", {b.from_target(tokens, Type::kFloat),
                                       b.weights.add(gate + ".weight", Type::kFloat, Form::kTransposed)});
  if (moe.gate_bias) logits = b.op("Add", {logits, b.weights.add(gate + ".bias", Type::kFloat)});
  const std::string scores = b.op(moe.score_func == "softmax" ? "Softmax" : "Sigmoid", {logits});
  std::string preferred = scores;
  if (const std::string bias = fqn + ".expert_bias"; b.weights.has(bias))
    preferred = b.op("Add", {preferred, b.weights.add(bias, Type::kFloat)});
  if (moe.num_expert_groups > 0) preferred = limit_to_groups(b, preferred);
  const std::string chosen = top_k(b, preferred, moe.top_k)[1];
  std::string values =
      b.graph.add({.op = "GatherElements", .inputs = {scores, chosen}, .attributes = {{"axis", int64_t{1}}}});
  if (moe.route_norm) {
    const std::string total = b.op("Add", {b.sum(values, -1, true), b.graph.real(1e-20, Type::kFloat)});
    values = b.op("Div", {values, total});
  }
  if (moe.route_scale != 1) values = b.op("Mul", {values, b.graph.real(moe.route_scale, Type::kFloat)});
  return scatter(b, chosen, values, scores);
}

// x and the result are [E, N, ...].
std::string feed_forward_of_all(const Builder& b, const std::string& fqn, const std::string& x) {
  const Type type = b.target.type;
  const auto weight = [&](const char* name) { return b.weights.add(fqn + name, type, Form::kTransposed); };
  if (b.spec.swiglu_limit <= 0) {
    return b.op("MatMul",
                {b.gated(b.op("MatMul", {x, weight(".w1")}), b.op("MatMul", {x, weight(".w3")})), weight(".w2")});
  }
  const auto bias = [&](const char* name) { return b.unsqueeze(b.weights.add(fqn + name, type), {1}); };
  const std::string wide = b.op("Add", {b.op("MatMul", {x, weight(".mlp1_weight")}), bias(".mlp1_bias")});
  const int64_t end = 2 * b.spec.moe->hidden;
  const std::string limit = b.graph.real(b.spec.swiglu_limit, type), low = b.graph.real(-b.spec.swiglu_limit, type);
  const std::string gate = b.op("Min", {b.slice(wide, 0, end, 2, 2), limit});
  const std::string up = b.op("Clip", {b.slice(wide, 1, end, 2, 2), low, limit});
  const std::string active = b.op("Mul", {gate, b.op("Sigmoid", {b.op("Mul", {gate, b.graph.real(kSlope, type)})})});
  const std::string hidden = b.op("Mul", {active, b.op("Add", {up, b.graph.real(1, type)})});
  return b.op("Add", {b.op("MatMul", {hidden, weight(".mlp2_weight")}), bias(".mlp2_bias")});
}

// tokens and the result are [N, dim], gates [N, experts].
std::string every_expert(const Builder& b, const std::string& fqn, const std::string& tokens,
                         const std::string& gates) {
  const std::string shares = b.to_target(b.unsqueeze(b.transpose(gates, {1, 0}), {2}), Type::kFloat);  // [E, N, 1]
  std::string x = b.unsqueeze(tokens, {0});
  if (b.spec.moe->score_before_experts) x = b.op("Mul", {x, shares});
  const std::string all = feed_forward_of_all(b, fqn, x);
  return b.sum(b.spec.moe->score_before_experts ? all : b.op("Mul", {all, shares}), 0, false);
}

std::string chosen_experts(const Builder& b, const std::string& fqn, const std::string& tokens,
                           const std::string& gates) {
  const models::ModelSpec& spec = b.spec;
  const Type type = b.target.type;
  const bool clamped = spec.swiglu_limit > 0, before = spec.moe->score_before_experts;
  const std::string total = b.to_target(b.sum(gates, -1, true), Type::kFloat);  // [N, 1]
  const std::string x = before ? b.op("Mul", {tokens, total}) : tokens;
  Node node{.op = "MoE",
            .inputs = {x, b.to_target(b.op("Log", {gates}), Type::kFloat)},
            .attributes = {{"k", spec.moe->top_k},
                           {"normalize_routing_weights", int64_t{1}},
                           {"activation_type", "swiglu"},
                           {"swiglu_fusion", int64_t{1}},
                           {"activation_alpha", static_cast<float>(clamped ? kSlope : 1)},
                           {"activation_beta", static_cast<float>(clamped ? 1 : 0)}},
            .domain = kMicrosoft};
  if (clamped) {
    node.attributes.push_back({"swiglu_limit", static_cast<float>(spec.swiglu_limit)});
    for (const char* name : {".mlp1_weight", ".mlp1_bias", ".mlp2_weight", ".mlp2_bias"})
      node.inputs.push_back(b.weights.add(fqn + name, type));
  } else {
    node.inputs.push_back(b.weights.add_alternate(fqn + ".w1", fqn + ".w3", type));
    node.inputs.insert(node.inputs.end(), {"", b.weights.add(fqn + ".w2", type)});
  }
  const std::string mixed = b.graph.add(std::move(node));
  return before ? mixed : b.op("Mul", {mixed, total});
}

}  // namespace

std::string mixture_of_experts(const Builder& builder, const std::string& fqn, const std::string& x) {
  const std::string tokens = builder.reshape(x, {-1, builder.spec.dim});
  const std::string gates = gate_values(builder, fqn, tokens);
  const auto experts = builder.target.microsoft ? chosen_experts : every_expert;
  const std::string routed =
      builder.op("Reshape", {experts(builder, fqn + ".experts", tokens, gates), builder.op("Shape", {x})});
  if (builder.spec.moe->num_shared_experts == 0) return routed;
  return builder.op("Add", {routed, builder.feed_forward(x, fqn + ".shared_experts")});
}

}  // namespace titan::checkpoint::onnx
