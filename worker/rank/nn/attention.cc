#include "worker/rank/nn/attention.h"

#include <cmath>
#include <utility>

#include "worker/rank/nn/rms_norm.h"

namespace titan::nn {
namespace {

// [B, T, H * D] -> [B, T, H, D]; the number of heads follows from the size, because a mesh may own only some of them.
at::Tensor split_heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), x.size(2) / head_dim, head_dim});
}

Parameter* declare_sinks(const Declare& declare, const std::string& fqn, const AttentionOptions& options) {
  if (!options.sinks_init) return nullptr;
  return &declare(fqn + ".sinks", {options.heads}, *options.sinks_init);
}

std::optional<RmsNorm> head_norm(const Declare& declare, const std::string& fqn, const AttentionOptions& options) {
  if (!options.qk_norm_eps) return std::nullopt;
  return RmsNorm(declare, fqn, options.head_dim, *options.qk_norm_eps);
}

const Init* bias(const AttentionOptions& options) { return options.bias_init ? &*options.bias_init : nullptr; }

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
      q_norm(head_norm(declare, fqn + ".q_norm.weight", options)),
      k_norm(head_norm(declare, fqn + ".k_norm.weight", options)),
      wq(declare, fqn + ".wq.weight", options.dim, options.heads * options.head_dim, options.in_init, bias(options)),
      wk(declare, fqn + ".wk.weight", options.dim, options.kv_heads * options.head_dim, options.in_init, bias(options)),
      wv(declare, fqn + ".wv.weight", options.dim, options.kv_heads * options.head_dim, options.in_init, bias(options)),
      wo(declare, fqn + ".wo.weight", options.heads * options.head_dim, options.dim, options.out_init, bias(options)),
      mask(options.mask),
      options_(options),
      rope_(std::move(rope)) {}

// A key head that several query heads share would take the factor of one of them to the others: there the queries have
// all of it.
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

at::Tensor GroupedAttention::forward(const at::Tensor& input, const MicrobatchContext& context) const {
  const at::Tensor x = through(seams.input, input);
  const std::vector<const Linear*> layers = {&wq, &wk, &wv};
  const std::vector<at::Tensor> qkv = project ? project(x, layers) : project_each(x, layers);
  at::Tensor q = split_heads(qkv[0], options_.head_dim);  // [B, T, H, D]
  at::Tensor k = split_heads(qkv[1], options_.head_dim);
  const at::Tensor v = split_heads(qkv[2], options_.head_dim);
  if (q_norm) q = q_norm->forward(q);
  if (k_norm) k = k_norm->forward(k);
  if (rope_) {
    q = rope_->apply(q, context.positions);
    k = rope_->apply(k, context.positions);
  }
  if (options_.rotated_norm_eps) {
    q = unit_heads(q, *options_.rotated_norm_eps);
    k = unit_heads(k, *options_.rotated_norm_eps);
  }
  if (options_.temperature) q = scale_by_position(q, *options_.temperature, context.positions);
  const at::Tensor mixed = core({.q = q.transpose(1, 2),
                                 .k = k.transpose(1, 2),
                                 .v = v.transpose(1, 2),
                                 .scale = 1.0 / std::sqrt(static_cast<double>(options_.head_dim)),
                                 .mask = mask,
                                 .sinks = sinks == nullptr ? at::Tensor() : sinks->weight,
                                 .largest = notes(context)},
                                context);  // [B, H, T, D]
  const at::Tensor joined = mixed.transpose(1, 2).contiguous().view({q.size(0), q.size(1), -1});
  return through(seams.output, wo.forward(joined));
}

}  // namespace titan::nn
