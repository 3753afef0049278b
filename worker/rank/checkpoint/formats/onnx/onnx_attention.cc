#include "worker/rank/checkpoint/formats/onnx/onnx_attention.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace titan::checkpoint::onnx {
namespace {

// Queries, keys and values of the new tokens, and how they meet.
struct Heads {
  std::string q, k, v;  // [B, S, heads * size], and [B, S, kv_heads * size] both.
  int64_t heads = 0, kv_heads = 0, size = 0;
  double scale = 0;
  int64_t window = 0, chunk = 0;
  std::string sinks;  // Parameter [heads]. Empty: none.
};

struct Cache {
  std::string past_key, past_value, present_key, present_value;
};

Cache add_cache(const Builder& b, int64_t layer) {
  const auto port = [&](const std::string& name, const char* length) {
    return Port{name, b.target.type, {"batch_size", cached_heads(b.spec), length, cached_head_size(b.spec)}};
  };
  const Cache cache{absl::StrCat("past_key_values.", layer, ".key"), absl::StrCat("past_key_values.", layer, ".value"),
                    absl::StrCat("present.", layer, ".key"), absl::StrCat("present.", layer, ".value")};
  for (const std::string& name : {cache.past_key, cache.past_value})
    b.graph.inputs.push_back(port(name, "past_sequence_length"));
  for (const std::string& name : {cache.present_key, cache.present_value})
    b.graph.outputs.push_back(port(name, "total_sequence_length"));
  return cache;
}

std::string standard_attention(const Builder& b, Masks& masks, const Heads& heads, const Cache& cache) {
  const std::string mask = masks.visible(heads.window, heads.chunk);
  return b.graph.add({.op = "Attention",
                      .inputs = {heads.q, heads.k, heads.v, mask, cache.past_key, cache.past_value},
                      .attributes = {{"q_num_heads", heads.heads},
                                     {"kv_num_heads", heads.kv_heads},
                                     {"scale", static_cast<float>(heads.scale)}},
                      .outputs = {"", cache.present_key, cache.present_value}});
}

std::string group_query_attention(const Builder& b, Masks& masks, const Heads& heads, const Cache& cache) {
  const std::string sinks = heads.sinks.empty() ? "" : b.weights.add(heads.sinks, b.target.type);
  Node node{.op = "GroupQueryAttention",
            .inputs = {heads.q, heads.k, heads.v, cache.past_key, cache.past_value, masks.last_tokens(),
                       masks.total_length(), "", "", "", masks.bias(heads.chunk)},
            .attributes = {{"num_heads", heads.heads},
                           {"kv_num_heads", heads.kv_heads},
                           {"scale", static_cast<float>(heads.scale)}},
            .domain = kMicrosoft,
            .outputs = {"", cache.present_key, cache.present_value}};
  if (!sinks.empty()) node.inputs.push_back(sinks);
  if (heads.window > 0) node.attributes.push_back({"local_window_size", heads.window});
  return b.graph.add(std::move(node));
}

// Softmax over the keys and one more logit without value, written out: the standard operator has no sinks. Query heads
// that share a key head stand in a separate dim G, so that nothing is repeated.
std::string attention_with_sinks(const Builder& b, Masks& masks, const Heads& heads, const Cache& cache) {
  const int64_t group = heads.heads / heads.kv_heads;
  const auto by_head = [&](const std::string& x, int64_t count) {
    return b.transpose(b.reshape(x, {0, 0, count, heads.size}), {0, 2, 1, 3});  // [B, count, S, size]
  };
  const std::string k = b.concat({cache.past_key, by_head(heads.k, heads.kv_heads)}, 2, {cache.present_key});
  const std::string v = b.concat({cache.past_value, by_head(heads.v, heads.kv_heads)}, 2, {cache.present_value});
  const std::string q = b.reshape(by_head(heads.q, heads.heads), {0, heads.kv_heads, group, -1, heads.size});
  const std::string scaled = b.op("Mul", {q, b.graph.real(heads.scale, b.target.type)});
  const std::string product = b.op("MatMul", {scaled, b.unsqueeze(b.transpose(k, {0, 1, 3, 2}), {2})});
  const std::string mask = b.unsqueeze(masks.visible(heads.window, heads.chunk), {1});  // [B, 1, 1, S, T]
  const std::string hidden = b.graph.real(-std::numeric_limits<double>::infinity(), Type::kFloat);
  const std::string logits = b.op("Where", {mask, b.from_target(product, Type::kFloat), hidden});
  const std::string sinks = b.reshape(b.weights.add(heads.sinks, Type::kFloat), {1, heads.kv_heads, group, 1, 1});
  const std::string largest = b.op("Max", {b.op("ReduceMax", {logits, b.graph.integers({-1})}), sinks});
  const std::string weights = b.op("Exp", {b.op("Sub", {logits, largest})});
  const std::string total = b.op("Add", {b.sum(weights, -1, true), b.op("Exp", {b.op("Sub", {sinks, largest})})});
  const std::string shares = b.to_target(b.op("Div", {weights, total}), Type::kFloat);
  const std::string mixed = b.reshape(b.op("MatMul", {shares, b.unsqueeze(v, {2})}), {0, heads.heads, -1, heads.size});
  return b.reshape(b.transpose(mixed, {0, 2, 1, 3}), {0, 0, heads.heads * heads.size});
}

// Returns [B, S, heads * size].
std::string core(const Builder& b, const AttentionInputs& inputs, int64_t layer, Heads heads) {
  heads.window = b.spec.layer_window(layer);
  heads.chunk = b.spec.layer_chunk(layer);
  const Cache cache = add_cache(b, layer);
  if (b.target.microsoft) return group_query_attention(b, *inputs.masks, heads, cache);
  if (!heads.sinks.empty()) return attention_with_sinks(b, *inputs.masks, heads, cache);
  return standard_attention(b, *inputs.masks, heads, cache);
}

// x [B, S, heads * size]
std::string rotate(const Builder& b, const AttentionInputs& inputs, const std::string& x, int64_t heads) {
  const Attribute pairs{"interleaved", static_cast<int64_t>(b.spec.rope == models::RopeStyle::kInterleaved)};
  if (b.target.opset >= 23) {
    return b.graph.add({.op = "RotaryEmbedding",
                        .inputs = {x, inputs.cos, inputs.sin, kPositionIds},
                        .attributes = {pairs, {"num_heads", heads}}});
  }
  return b.graph.add({.op = "RotaryEmbedding",
                      .inputs = {x, kPositionIds, inputs.cos, inputs.sin},
                      .attributes = {pairs},
                      .domain = kMicrosoft});
}

// Applies the norms and the rotation of queries or keys, x [B, S, heads * head_dim].
std::string positioned(const Builder& b, const AttentionInputs& inputs, int64_t layer, std::string x, int64_t heads,
                       const std::string& norm_weight) {
  const int64_t size = b.spec.head_dim;
  const auto norm_heads = [&](const std::string& value, const std::string& weight) {
    return b.reshape(b.norm(b.reshape(value, {0, 0, heads, size}), weight), {0, 0, heads * size});
  };
  if (b.spec.qk_norm) x = norm_heads(x, b.weights.add(norm_weight, b.target.type));
  if (!b.spec.layer_has_positions(layer)) return x;
  x = rotate(b, inputs, x, heads);
  if (!b.spec.rotated_qk_norm) return x;
  return norm_heads(x, b.weights.add_value("ones_of_head", at::ones({size}), b.target.type));
}

std::string grouped(const Builder& b, const AttentionInputs& inputs, int64_t layer, const std::string& fqn,
                    const std::string& x) {
  const models::ModelSpec& spec = b.spec;
  std::string q = positioned(b, inputs, layer, b.linear(x, fqn + ".wq"), spec.n_heads, fqn + ".q_norm.weight");
  const std::string k = positioned(b, inputs, layer, b.linear(x, fqn + ".wk"), spec.n_kv_heads, fqn + ".k_norm.weight");
  if (!inputs.temperature.empty() && !spec.layer_has_positions(layer)) q = b.op("Mul", {q, inputs.temperature});
  const std::string mixed = core(b, inputs, layer,
                                 {.q = q,
                                  .k = k,
                                  .v = b.linear(x, fqn + ".wv"),
                                  .heads = spec.n_heads,
                                  .kv_heads = spec.n_kv_heads,
                                  .size = spec.head_dim,
                                  .scale = 1 / std::sqrt(static_cast<double>(spec.head_dim)),
                                  .sinks = spec.attention_sinks ? fqn + ".sinks" : ""});
  return b.linear(mixed, fqn + ".wo");
}

// Keys and values are computed from the latents before they are cached, as in training.
std::string latent(const Builder& b, const AttentionInputs& inputs, int64_t layer, const std::string& fqn,
                   const std::string& x) {
  const models::ModelSpec& spec = b.spec;
  const int64_t heads = spec.n_heads, plain = spec.qk_nope_head_dim, turned = spec.qk_rope_head_dim;
  const int64_t values = spec.v_head_dim, padding = spec.head_dim - values;
  const auto norm = [&](const std::string& value, const char* name) {
    return b.norm(value, b.weights.add(absl::StrCat(fqn, name), b.target.type));
  };
  const std::string wide = spec.q_lora_rank == 0
                               ? b.linear(x, fqn + ".wq")
                               : b.linear(norm(b.linear(x, fqn + ".wq_a"), ".q_norm.weight"), fqn + ".wq_b");
  const auto q = b.split(b.reshape(wide, {0, 0, heads, spec.head_dim}), {plain, turned}, 3);
  const std::string turned_q =
      b.reshape(rotate(b, inputs, b.reshape(q[1], {0, 0, heads * turned}), heads), {0, 0, heads, turned});
  const auto low = b.split(b.linear(x, fqn + ".wkv_a"), {spec.kv_lora_rank, turned}, 2);
  const std::string shared_key = b.reshape(rotate(b, inputs, low[1], 1), {0, 0, 1, turned});
  const std::string expanded = b.linear(norm(low[0], ".kv_norm.weight"), fqn + ".wkv_b");
  const auto kv = b.split(b.reshape(expanded, {0, 0, heads, plain + values}), {plain, values}, 3);
  const std::string key_of_all = b.op("Expand", {shared_key, b.graph.integers({1, 1, heads, 1})});
  std::string v = kv[1];
  if (padding > 0) v = b.op("Pad", {v, b.graph.integers({0, 0, 0, 0, 0, 0, 0, padding})});
  const auto joined = [&](const std::string& value) { return b.reshape(value, {0, 0, heads * spec.head_dim}); };
  std::string mixed = core(b, inputs, layer,
                           {.q = joined(b.concat({q[0], turned_q}, 3)),
                            .k = joined(b.concat({kv[0], key_of_all}, 3)),
                            .v = joined(v),
                            .heads = heads,
                            .kv_heads = heads,
                            .size = spec.head_dim,
                            .scale = inputs.latent_scale});
  if (padding > 0) {
    mixed = b.reshape(b.slice(b.reshape(mixed, {0, 0, heads, spec.head_dim}), 0, values, 3), {0, 0, heads * values});
  }
  return b.linear(mixed, fqn + ".wo");
}

}  // namespace

int64_t cached_head_size(const models::ModelSpec& spec) { return spec.head_dim; }

int64_t cached_heads(const models::ModelSpec& spec) {
  return spec.attention == models::Attention::kLatent ? spec.n_heads : spec.n_kv_heads;
}

std::string attention(const Builder& builder, const AttentionInputs& inputs, int64_t layer, const std::string& x) {
  const std::string fqn = absl::StrCat("layers.", layer, ".attention");
  if (builder.spec.attention == models::Attention::kLatent) return latent(builder, inputs, layer, fqn, x);
  return grouped(builder, inputs, layer, fqn, x);
}

}  // namespace titan::checkpoint::onnx
