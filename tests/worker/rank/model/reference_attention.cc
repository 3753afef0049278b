#include <cmath>

#include "tests/worker/rank/model/reference_model.h"

namespace titan::testing {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Whether a layer sees only the last tokens. Every window_step-th layer, counted from 1, and the first ones see all.
bool in_window(const models::ModelSpec& spec, int64_t layer) {
  if (spec.sliding_window == 0 || layer < spec.window_first_layer) return false;
  return spec.window_step == 0 || layer % spec.window_step != spec.window_step - 1;
}

// Returns the frequency of pair i of a rotation of `dim` channels.
double frequency(const models::ModelSpec& spec, int64_t layer, int64_t dim, int64_t i, int64_t seq_len) {
  const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
  if (spec.window_rope_theta > 0 && in_window(spec, layer)) return std::pow(spec.window_rope_theta, exponent);
  const double plain = std::pow(spec.rope_theta, exponent);
  if (spec.rope_scaling) {
    const models::LlamaRopeScaling& s = *spec.rope_scaling;
    const double wavelength = 2 * kPi / plain, context = static_cast<double>(s.original_seq_len);
    if (wavelength < context / s.high_freq_factor) return plain;
    if (wavelength > context / s.low_freq_factor) return plain / s.factor;
    const double blend = (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    return (1 - blend) * plain / s.factor + blend * plain;
  }
  if (!spec.yarn) return plain;
  const models::YarnScaling& yarn = *spec.yarn;
  if (yarn.only_beyond_original && seq_len <= yarn.original_seq_len) return plain;
  // Returns the pair that makes `turns` rotations over the original context.
  const auto pair = [&](double turns) {
    return static_cast<double>(dim) * std::log(static_cast<double>(yarn.original_seq_len) / (turns * 2 * kPi)) /
           (2 * std::log(spec.rope_theta));
  };
  double low = pair(yarn.beta_fast), high = pair(yarn.beta_slow);
  if (!yarn.scales_cos_sin || yarn.rounds_bounds) {
    low = std::max(std::floor(low), 0.0);
    high = std::min(std::ceil(high), static_cast<double>(dim - 1));
  }
  const double slowed = std::min(1.0, std::max(0.0, (static_cast<double>(i) - low) / (high - low)));
  return slowed * plain / yarn.factor + (1 - slowed) * plain;
}

// Rotates x [B, T, H, D] pair by pair, or its first channels.
at::Tensor rotate(const models::ModelSpec& spec, int64_t layer, const at::Tensor& x, int64_t seq_len) {
  const int64_t dim = spec.rotary_dim > 0 ? spec.rotary_dim : x.size(3), half = dim / 2;
  const at::Tensor place = at::arange(x.size(1), at::kDouble).view({1, -1, 1});
  const bool local = spec.window_rope_theta > 0 && in_window(spec, layer);
  double grow = spec.yarn && spec.yarn->scales_cos_sin && !local ? 0.1 * std::log(spec.yarn->factor) + 1 : 1.0;
  if (spec.yarn && spec.yarn->cos_sin_factor > 0 && !local) grow = spec.yarn->cos_sin_factor;
  std::vector<at::Tensor> channels = x.unbind(3);
  for (int64_t i = 0; i < half; ++i) {
    const bool halves = spec.rope == models::RopeStyle::kRotateHalf;
    const int64_t a = halves ? i : 2 * i, b = halves ? i + half : 2 * i + 1;
    const at::Tensor angle = place * frequency(spec, layer, dim, i, seq_len);
    const at::Tensor u = x.select(3, a), v = x.select(3, b);
    channels[static_cast<size_t>(a)] = (u * angle.cos() - v * angle.sin()) * grow;
    channels[static_cast<size_t>(b)] = (u * angle.sin() + v * angle.cos()) * grow;
  }
  return at::stack(channels, 3);
}

// Returns [B or 1, 1, T, T]: whether token i (rows) sees token j.
at::Tensor visible(const models::ModelSpec& spec, int64_t layer, int64_t length, const at::Tensor& documents) {
  at::Tensor see = at::zeros({length, length}, at::kBool);
  const bool chunked = spec.nope_layer_step > 0 && spec.attention_chunk > 0 && spec.layer_has_positions(layer);
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      bool sees = true;
      if (in_window(spec, layer)) sees = i - j < spec.sliding_window;
      if (chunked) sees = sees && i / spec.attention_chunk == j / spec.attention_chunk;
      see[i][j] = sees;
    }
  }
  see = see.view({1, 1, length, length});
  if (spec.mask != models::Mask::kBlockCausal || !documents.defined()) return see;
  return see.logical_and(documents.unsqueeze(2).eq(documents.unsqueeze(1)).unsqueeze(1));
}

// Computes [B, T, H * Dv] from q [B, T, H, D], k [B, T, Hkv, D] and v [B, T, Hkv, Dv].
at::Tensor softmax_attention(const at::Tensor& q, at::Tensor k, at::Tensor v, double scale, double cap,
                             const at::Tensor& see, const at::Tensor& sinks) {
  const int64_t repeat = q.size(2) / k.size(2);
  k = k.repeat_interleave(repeat, 2);
  v = v.repeat_interleave(repeat, 2);
  at::Tensor scores = at::einsum("bihd,bjhd->bhij", {q, k}) * scale;
  if (cap > 0) scores = cap * (scores / cap).tanh();
  scores = scores.masked_fill(see.logical_not(), -std::numeric_limits<double>::infinity());
  if (sinks.defined()) {
    const at::Tensor sink = sinks.view({1, -1, 1, 1}).expand({scores.size(0), scores.size(1), scores.size(2), 1});
    scores = at::cat({scores, sink}, 3);
  }
  const at::Tensor shares = scores.softmax(3).narrow(3, 0, k.size(1));
  return at::einsum("bhij,bjhd->bihd", {shares, v}).flatten(2);
}

at::Tensor latent(const models::ModelSpec& spec, const Weights& weights, int64_t layer, const std::string& fqn,
                  const at::Tensor& x, const at::Tensor& see, int64_t seq_len) {
  const auto w = [&](const char* name) { return weights.at(fqn + name); };
  const auto norm = [&](const at::Tensor& values, const char* name) {
    return reference_norm(values, w(name) + spec.norm_offset, spec.norm_eps);
  };
  const int64_t batch = x.size(0), length = x.size(1), nope = spec.qk_nope_head_dim, rope = spec.qk_rope_head_dim;
  at::Tensor q = spec.q_lora_rank == 0
                     ? at::matmul(x, w(".wq.weight").t())
                     : at::matmul(norm(at::matmul(x, w(".wq_a.weight").t()), ".q_norm.weight"), w(".wq_b.weight").t());
  q = q.view({batch, length, spec.n_heads, nope + rope});
  const at::Tensor down = at::matmul(x, w(".wkv_a.weight").t());
  const at::Tensor key = rotate(spec, layer, down.slice(2, spec.kv_lora_rank).unsqueeze(2), seq_len);
  const at::Tensor up = at::matmul(norm(down.slice(2, 0, spec.kv_lora_rank), ".kv_norm.weight"), w(".wkv_b.weight").t())
                            .view({batch, length, spec.n_heads, nope + spec.v_head_dim});
  q = at::cat({q.slice(3, 0, nope), rotate(spec, layer, q.slice(3, nope), seq_len)}, 3);
  const at::Tensor k = at::cat({up.slice(3, 0, nope), key.repeat({1, 1, spec.n_heads, 1})}, 3);
  double scale = 1 / std::sqrt(static_cast<double>(nope + rope));
  if (spec.yarn && seq_len > spec.yarn->original_seq_len) {
    scale *= std::pow(0.1 * spec.yarn->mscale * std::log(spec.yarn->factor) + 1, 2);
  }
  return at::matmul(softmax_attention(q, k, up.slice(3, nope), scale, /*cap=*/0, see, {}), w(".wo.weight").t());
}

at::Tensor grouped(const models::ModelSpec& spec, const Weights& weights, int64_t layer, const std::string& fqn,
                   const at::Tensor& x, const at::Tensor& see, int64_t seq_len) {
  const auto project = [&](const at::Tensor& in, const char* name) {
    const at::Tensor y = at::matmul(in, weights.at(fqn + name + ".weight").t());
    const bool biased = spec.attention_bias && (spec.attention_out_bias || std::string(name) != ".wo");
    return biased ? y + weights.at(fqn + name + ".bias") : y;
  };
  const auto norm = [&](const at::Tensor& values, const char* name) {
    return reference_norm(values, weights.at(fqn + name) + spec.norm_offset, spec.norm_eps);
  };
  at::Tensor q = project(x, ".wq"), k = project(x, ".wk");
  if (spec.qk_norm_whole) {
    q = norm(q, ".q_norm.weight");
    k = norm(k, ".k_norm.weight");
  }
  const auto heads = [&](const at::Tensor& y) { return y.view({x.size(0), x.size(1), -1, spec.head_dim}); };
  q = heads(q);
  k = heads(k);
  if (spec.qk_norm && !spec.qk_norm_whole) {
    q = norm(q, ".q_norm.weight");
    k = norm(k, ".k_norm.weight");
  }
  if (spec.layer_has_positions(layer)) {
    q = rotate(spec, layer, q, seq_len);
    k = rotate(spec, layer, k, seq_len);
    if (spec.rotated_qk_norm) {
      q = reference_norm(q, at::ones({spec.head_dim}, at::kDouble), spec.norm_eps);
      k = reference_norm(k, at::ones({spec.head_dim}, at::kDouble), spec.norm_eps);
    }
  } else if (spec.query_temperature_floor > 0) {
    std::vector<double> factor;
    for (int64_t t = 0; t < x.size(1); ++t) {
      const double past = std::floor(static_cast<double>(t + 1) / spec.query_temperature_floor);
      factor.push_back(1 + spec.query_temperature_scale * std::log(1 + past));
    }
    q = q * at::tensor(factor, at::kDouble).view({1, -1, 1, 1});
  }
  const double scale =
      spec.attention_scale > 0 ? spec.attention_scale : 1 / std::sqrt(static_cast<double>(spec.head_dim));
  const at::Tensor mixed = softmax_attention(q, k, heads(project(x, ".wv")), scale, spec.attention_softcap, see,
                                             spec.attention_sinks ? weights.at(fqn + ".sinks") : at::Tensor());
  return project(mixed, ".wo");
}

}  // namespace

at::Tensor reference_attention(const models::ModelSpec& spec, const Weights& weights, int64_t layer,
                               const at::Tensor& x, const at::Tensor& documents, int64_t seq_len) {
  const std::string fqn = "layers." + std::to_string(layer) + ".attention";
  const at::Tensor see = visible(spec, layer, x.size(1), documents);
  return spec.attention == models::Attention::kLatent ? latent(spec, weights, layer, fqn, x, see, seq_len)
                                                      : grouped(spec, weights, layer, fqn, x, see, seq_len);
}

}  // namespace titan::testing
