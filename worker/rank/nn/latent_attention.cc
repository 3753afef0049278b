#include <utility>
#include <vector>

#include "worker/rank/nn/attention.h"

namespace titan::nn {

LatentAttention::LatentAttention(const Declare& declare, const std::string& fqn, const LatentAttentionOptions& options,
                                 std::shared_ptr<const Rope> rope)
    : options_(options), rope_(std::move(rope)) {
  const LatentAttentionOptions& o = options_;
  if (o.q_lora_rank == 0) {
    wq.emplace(declare, fqn + ".wq.weight", o.dim, o.heads * (o.nope_dim + o.rope_dim), o.in_init);
  } else {
    wq_a.emplace(declare, fqn + ".wq_a.weight", o.dim, o.q_lora_rank, o.in_init);
    q_norm.emplace(declare, fqn + ".q_norm.weight", o.q_lora_rank, o.norm_eps);
    wq_b.emplace(declare, fqn + ".wq_b.weight", o.q_lora_rank, o.heads * (o.nope_dim + o.rope_dim), o.in_init);
  }
  wkv_a.emplace(declare, fqn + ".wkv_a.weight", o.dim, o.kv_lora_rank + o.rope_dim, o.in_init);
  kv_norm.emplace(declare, fqn + ".kv_norm.weight", o.kv_lora_rank, o.norm_eps);
  wkv_b.emplace(declare, fqn + ".wkv_b.weight", o.kv_lora_rank, o.heads * (o.nope_dim + o.v_dim), o.in_init);
  wo.emplace(declare, fqn + ".wo.weight", o.heads * o.v_dim, o.dim, o.out_init);
}

// Queries and keys share the factor where both are the head's own. The rotated key is all heads': the queries that meet
// it have all of the factor (arXiv 2507.20534, 2.1).
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
  // Queries first, then keys: selective checkpointing keeps every second product in the order of these calls, which is
  // torchtitan's. Where the gathering of x is overlapped, one call computes both first projections.
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
  q = q.view({batch, length, -1, o.nope_dim + o.rope_dim});  // [B, T, H, nope + rope]; a mesh may own only some heads.
  const at::Tensor turned_q = rope_->apply(q.narrow(3, o.nope_dim, o.rope_dim), context.positions);
  q = at::cat({q.narrow(3, 0, o.nope_dim), turned_q}, 3);

  if (!latent.defined()) latent = wkv_a->forward(x);
  // One rotated key for all heads; the rest of the keys and the values grow out of the normed latent.
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
