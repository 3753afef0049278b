#include "worker/rank/nn/attention.h"

#include <cmath>
#include <utility>

namespace titan::nn {
namespace {

// [B, T, H * D] -> [B, T, H, D]. The number of heads follows from the size, because a mesh may have only some of them.
at::Tensor split_heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), x.size(2) / head_dim, head_dim});
}

Parameter* declare_sinks(const Declare& declare, const std::string& fqn, const AttentionOptions& options) {
  if (!options.sinks_init) return nullptr;
  return &declare(fqn + ".sinks", {options.heads}, *options.sinks_init);
}

std::optional<RmsNorm> head_norm(const Declare& declare, const std::string& fqn, const AttentionOptions& options,
                                 int64_t heads) {
  if (!options.qk_norm_eps) return std::nullopt;
  const int64_t size = options.head_dim * (options.whole_norm ? heads : 1);
  return RmsNorm(declare, fqn, size, *options.qk_norm_eps, options.norm_offset);
}

const Init* bias(const AttentionOptions& options) { return options.bias_init ? &*options.bias_init : nullptr; }
const Init* out_bias(const AttentionOptions& options) { return options.out_bias ? bias(options) : nullptr; }

double scale_of(const AttentionOptions& options) {
  return options.scale > 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(options.head_dim));
}

at::Tensor unit_heads(const at::Tensor& x, double eps) { return rms_norm(x, {}, eps); }

// x [B, T, H, D]
at::Tensor scale_by_position(const at::Tensor& x, const QueryTemperature& temperature, const at::Tensor& positions) {
  const at::TensorOptions wide = x.options().dtype(accumulate_type(x.scalar_type()));
  const at::Tensor place = positions.defined() ? positions.to(wide) : at::arange(x.size(1), wide);
  const at::Tensor factor = ((place + 1) / temperature.floor).floor().log1p() * temperature.scale + 1;
  return (x * factor.view({1, x.size(1), 1, 1})).to(x.scalar_type());
}

}  // namespace

GroupedAttention::GroupedAttention(const Declare& declare, const std::string& fqn, const AttentionOptions& options,
                                   std::shared_ptr<const Rope> rope)
    : sinks(declare_sinks(declare, fqn, options)),
      q_norm(head_norm(declare, fqn + ".q_norm.weight", options, options.heads)),
      k_norm(head_norm(declare, fqn + ".k_norm.weight", options, options.kv_heads)),
      wq(declare, fqn + ".wq.weight", options.dim, options.heads * options.head_dim, options.in_init, bias(options)),
      wk(declare, fqn + ".wk.weight", options.dim, options.kv_heads * options.head_dim, options.in_init, bias(options)),
      wv(declare, fqn + ".wv.weight", options.dim, options.kv_heads * options.head_dim, options.in_init, bias(options)),
      wo(declare, fqn + ".wo.weight", options.heads * options.head_dim, options.dim, options.out_init,
         out_bias(options)),
      mask(options.mask),
      options_(options),
      rope_(std::move(rope)) {}

// Scaling a key head that several query heads share would apply the factor of one of them to the others. In that case
// only the queries are scaled, by the whole factor.
std::vector<LogitRows> GroupedAttention::logit_rows() const {
  if (q_norm || options_.rotated_norm_eps) return {};
  const int64_t rows = options_.head_dim;
  const bool shared = options_.kv_heads != options_.heads;
  std::vector<LogitRows> all;
  for (const Linear* projection : {&wq, &wk}) {
    if (shared && projection == &wk) continue;
    for (Parameter* parameter : {&projection->weight(), projection->bias()}) {
      if (parameter != nullptr) all.push_back({parameter, rows, 0, rows, shared ? 1.0 : 0.5});
    }
  }
  return all;
}

// projected [B, T, H * D] -> [B, T, H, D]
at::Tensor GroupedAttention::normed_heads(const at::Tensor& projected, const std::optional<RmsNorm>& norm) const {
  if (norm && options_.whole_norm) return split_heads(norm->forward(projected), options_.head_dim);
  const at::Tensor heads = split_heads(projected, options_.head_dim);
  return norm ? norm->forward(heads) : heads;
}

// heads [B, T, H, D]. Layers without positions return them unchanged.
at::Tensor GroupedAttention::rotate(const at::Tensor& heads, const MicrobatchContext& context) const {
  const int64_t turned = options_.rotary_dim, size = heads.size(3);
  if (turned > 0 && turned < size && rope_) {
    return at::cat(
        {rope_->apply(heads.narrow(3, 0, turned), context.positions), heads.narrow(3, turned, size - turned)}, 3);
  }
  if (rotation) return apply_rope_rows(heads, rotation(context));
  return rope_ ? rope_->apply(heads, context.positions) : heads;
}

at::Tensor GroupedAttention::forward(const at::Tensor& input, const MicrobatchContext& context) const {
  const at::Tensor x = through(seams.input, input);
  const std::vector<const Linear*> layers = {&wq, &wk, &wv};
  const std::vector<at::Tensor> qkv = project ? project(x, layers) : project_each(x, layers);
  at::Tensor q = normed_heads(qkv[0], q_norm);  // [B, T, H, D]
  at::Tensor k = normed_heads(qkv[1], k_norm);
  const at::Tensor v = split_heads(qkv[2], options_.head_dim);
  q = rotate(q, context);
  k = rotate(k, context);
  if (options_.rotated_norm_eps) {
    q = unit_heads(q, *options_.rotated_norm_eps);
    k = unit_heads(k, *options_.rotated_norm_eps);
  }
  if (options_.temperature) q = scale_by_position(q, *options_.temperature, context.positions);
  const at::Tensor mixed = core({.q = q.transpose(1, 2),
                                 .k = k.transpose(1, 2),
                                 .v = v.transpose(1, 2),
                                 .scale = scale_of(options_),
                                 .softcap = options_.softcap,
                                 .mask = mask,
                                 .sinks = sinks == nullptr ? at::Tensor() : sinks->weight,
                                 .largest = notes(context)},
                                context);  // [B, H, T, D]
  const at::Tensor joined = mixed.transpose(1, 2).contiguous().view({q.size(0), q.size(1), -1});
  return through(seams.output, wo.forward(joined));
}

LatentAttention::LatentAttention(const Declare& declare, const std::string& fqn, const LatentAttentionOptions& options,
                                 std::shared_ptr<const Rope> rope)
    : options_(options), rope_(std::move(rope)) {
  const LatentAttentionOptions& o = options_;
  if (o.q_lora_rank == 0) {
    wq.emplace(declare, fqn + ".wq.weight", o.dim, o.heads * (o.nope_dim + o.rope_dim), o.in_init);
  } else {
    wq_a.emplace(declare, fqn + ".wq_a.weight", o.dim, o.q_lora_rank, o.in_init);
    q_norm.emplace(declare, fqn + ".q_norm.weight", o.q_lora_rank, o.norm_eps, o.norm_offset);
    wq_b.emplace(declare, fqn + ".wq_b.weight", o.q_lora_rank, o.heads * (o.nope_dim + o.rope_dim), o.in_init);
  }
  wkv_a.emplace(declare, fqn + ".wkv_a.weight", o.dim, o.kv_lora_rank + o.rope_dim, o.in_init);
  kv_norm.emplace(declare, fqn + ".kv_norm.weight", o.kv_lora_rank, o.norm_eps, o.norm_offset);
  wkv_b.emplace(declare, fqn + ".wkv_b.weight", o.kv_lora_rank, o.heads * (o.nope_dim + o.v_dim), o.in_init);
  wo.emplace(declare, fqn + ".wo.weight", o.heads * o.v_dim, o.dim, o.out_init);
}

// Queries and keys share the factor where both belong to one head. All heads share the rotated key, so the query rows
// that multiply it get the whole factor (arXiv 2507.20534, 2.1).
std::vector<LogitRows> LatentAttention::logit_rows() const {
  const LatentAttentionOptions& o = options_;
  Parameter* queries = &(wq ? *wq : *wq_b).weight();
  const int64_t query_rows = o.nope_dim + o.rope_dim;
  return {{queries, query_rows, 0, o.nope_dim, 0.5},
          {queries, query_rows, o.nope_dim, o.rope_dim, 1},
          {&wkv_b->weight(), o.nope_dim + o.v_dim, 0, o.nope_dim, 0.5}};
}

at::Tensor LatentAttention::forward(const at::Tensor& input, const MicrobatchContext& context) const {
  const LatentAttentionOptions& o = options_;
  const at::Tensor x = through(seams.input, input);
  // Queries come first, then keys: selective checkpointing saves every second product in the order of these calls,
  // which is torchtitan's. If the gathering of x is overlapped, one call computes both first projections.
  const Linear& into_queries = wq ? *wq : *wq_a;
  at::Tensor q, latent;
  if (project) {
    const std::vector<at::Tensor> both = project(x, {&into_queries, &*wkv_a});
    q = both[0], latent = both[1];
  } else {
    q = into_queries.forward(x);
  }
  if (wq_b) q = wq_b->forward(q_norm->forward(q));
  const int64_t batch = q.size(0), length = q.size(1);
  q = q.view({batch, length, -1, o.nope_dim + o.rope_dim});  // [B, T, H, nope + rope]. A mesh may have only some heads.
  const at::Tensor turned_q = rope_->apply(q.narrow(3, o.nope_dim, o.rope_dim), context.positions);
  q = at::cat({q.narrow(3, 0, o.nope_dim), turned_q}, 3);

  if (!latent.defined()) latent = wkv_a->forward(x);
  // All heads share one rotated key. The rest of the keys and the values are computed from the normed latent.
  const at::Tensor shared_key =
      rope_->apply(latent.narrow(2, o.kv_lora_rank, o.rope_dim).unsqueeze(2), context.positions);
  const at::Tensor normed = kv_norm->forward(latent.narrow(2, 0, o.kv_lora_rank));
  if (latent_core) {
    const at::Tensor mixed = latent_core({q, normed, shared_key}, context);
    if (mixed.defined()) return through(seams.output, wo->forward(mixed.reshape({batch, length, -1})));
  }
  const at::Tensor kv = wkv_b->forward(normed).view({batch, length, -1, o.nope_dim + o.v_dim});
  const at::Tensor k =
      at::cat({kv.narrow(3, 0, o.nope_dim), shared_key.expand({batch, length, kv.size(2), o.rope_dim})}, 3);
  const at::Tensor v = kv.narrow(3, o.nope_dim, o.v_dim);

  const at::Tensor mixed = core({.q = q.transpose(1, 2),
                                 .k = k.transpose(1, 2),
                                 .v = v.transpose(1, 2),
                                 .scale = o.softmax_scale,
                                 .mask = o.mask,
                                 .largest = notes(context)},
                                context);  // [B, H, T, v]
  const at::Tensor joined = mixed.transpose(1, 2).contiguous().view({batch, length, -1});
  return through(seams.output, wo->forward(joined));
}

}  // namespace titan::nn
