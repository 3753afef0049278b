#include "worker/rank/nn/attention_blocks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "worker/rank/nn/layers.h"

namespace titan::nn {
namespace {

// Returns one row (all for kAllRows) and `length` tokens of [B, H, T, ...].
at::Tensor part_of(const at::Tensor& tensor, int64_t row, int64_t begin, int64_t length) {
  const at::Tensor tokens = tensor.narrow(2, begin, length);
  return row == kAllRows ? tokens : tokens.narrow(0, row, 1);
}

at::Tensor tokens_first_empty(const std::vector<int64_t>& shape, const at::TensorOptions& options) {
  return at::empty({shape[0], shape[2], shape[1], shape[3]}, options).transpose(1, 2);
}

// Returns the blocks for the kernel, which stores all scores of a block if they are capped.
std::vector<BlockPair> blocks_of(const std::vector<BlockPair>& pairs, const at::Tensor& q, bool capped) {
  if (!capped) return pairs;
  std::vector<BlockPair> pieces;
  for (const BlockPair& pair : pairs) {
    const int64_t scores = (pair.row == kAllRows ? q.size(0) : 1) * q.size(1) * pair.keys;
    const std::vector<BlockPair> cut = cut_queries(pair, std::max<int64_t>(1, kMaxStoredScores / scores));
    pieces.insert(pieces.end(), cut.begin(), cut.end());
  }
  return pieces;
}

}  // namespace

BlockOutput with_sinks(BlockOutput result, const at::Tensor& sinks) {
  if (!sinks.defined()) return result;
  const at::ScalarType type = result.out.scalar_type();
  const at::Tensor together = at::logaddexp(result.lse, sinks.to(result.lse.scalar_type()).view({1, -1, 1}));
  const at::Tensor share = (result.lse - together).exp_().unsqueeze(-1);
  return {type == share.scalar_type() ? result.out.mul_(share) : (result.out * share).to(type), together};
}

at::Tensor grad_sinks(const at::Tensor& sinks, const at::Tensor& grad_out, const BlockOutput& result) {
  const at::ScalarType exact = result.lse.scalar_type();
  // [B, H, T]: weight of the sink for each query.
  const at::Tensor weight = (sinks.to(exact).view({1, -1, 1}) - result.lse).exp_();
  const at::Tensor own = (grad_out.to(exact) * result.out).sum(-1);
  return (weight * own).sum(at::IntArrayRef{0, 2}).neg_().to(sinks.scalar_type());
}

BlockwiseAttention::BlockwiseAttention(at::Tensor q, int64_t v_dim, const ScoreForm& scores, bool once)
    : q_(std::move(q)),
      v_dim_(v_dim),
      once_(once),
      capped_(scores.softcap > 0),
      kernel_(make_attention_kernel(q_, v_dim, scores)) {}

void BlockwiseAttention::add(const at::Tensor& k, const at::Tensor& v, const std::vector<BlockPair>& pairs) {
  for (const BlockPair& pair : blocks_of(pairs, q_, capped_)) {
    merge(pair,
          kernel_->forward(part_of(q_, pair.row, pair.query, pair.queries), part_of(k, pair.row, pair.key, pair.keys),
                           part_of(v, pair.row, pair.key, pair.keys), pair.band));
  }
}

void BlockwiseAttention::merge(const BlockPair& pair, const BlockOutput& block) {
  const bool all = pair.row == kAllRows && pair.queries == q_.size(2);
  if (all && !total_.out.defined()) {
    total_ = once_ ? block : BlockOutput{block.out.to(block.lse.scalar_type()), block.lse};
    return;
  }
  if (!total_.out.defined()) {
    const at::ScalarType exact = accumulate_type(q_.scalar_type());
    total_.out = tokens_first_empty({q_.size(0), q_.size(1), q_.size(2), v_dim_},
                                    q_.options().dtype(once_ ? q_.scalar_type() : exact));
    total_.lse = at::empty({q_.size(0), q_.size(1), q_.size(2)}, q_.options().dtype(exact));
    if (!once_) {
      total_.out.zero_();
      total_.lse.fill_(-std::numeric_limits<double>::infinity());
    }
  }
  at::Tensor out = part_of(total_.out, pair.row, pair.query, pair.queries);
  at::Tensor lse = part_of(total_.lse, pair.row, pair.query, pair.queries);
  if (once_) {
    out.copy_(block.out);
    lse.copy_(block.lse);
    return;
  }
  const at::Tensor together = at::logaddexp(lse, block.lse);
  out.mul_((lse - together).exp_().unsqueeze(-1));
  out.addcmul_(block.out.to(out.scalar_type()), (block.lse - together).exp_().unsqueeze(-1));
  lse.copy_(together);
}

BlockOutput BlockwiseAttention::finish(const at::Tensor& sinks) {
  BlockOutput result = with_sinks(std::move(total_), sinks);
  result.out = result.out.to(q_.scalar_type());
  return result;
}

GradientSum::GradientSum(const at::Tensor& like)
    : shape_(like.sizes().vec()), options_(like.options().dtype(accumulate_type(like.scalar_type()))) {}

GradientSum GradientSum::into(at::Tensor target) {
  GradientSum sum(target);
  sum.sum_ = std::move(target);
  return sum;
}

void GradientSum::add(const at::Tensor& part, int64_t row, int64_t begin) {
  if (!sum_.defined()) {
    const bool all = row == kAllRows && part.size(2) == shape_[2];
    if (all && part.scalar_type() == c10::typeMetaToScalarType(options_.dtype())) {
      sum_ = part;
      return;
    }
    sum_ = tokens_first_empty(shape_, options_).zero_();
  }
  part_of(sum_, row, begin, part.size(2)).add_(part);
}

at::Tensor GradientSum::take() {
  if (!sum_.defined()) return tokens_first_empty(shape_, options_).zero_();
  return std::move(sum_);
}

BlockwiseGradients::BlockwiseGradients(const at::Tensor& grad_out, at::Tensor q, BlockOutput merged,
                                       const ScoreForm& scores)
    : grad_out_(dense_heads(grad_out)),
      q_(std::move(q)),
      merged_(std::move(merged)),
      capped_(scores.softcap > 0),
      kernel_(make_attention_kernel(q_, grad_out_.size(3), scores)),
      grad_q_(q_) {}

void BlockwiseGradients::add(const at::Tensor& k, const at::Tensor& v, const std::vector<BlockPair>& pairs,
                             GradientSum& grad_k, GradientSum& grad_v) {
  for (const BlockPair& pair : blocks_of(pairs, q_, capped_)) {
    const auto queries = [&](const at::Tensor& t) { return part_of(t, pair.row, pair.query, pair.queries); };
    const auto keys = [&](const at::Tensor& t) { return part_of(t, pair.row, pair.key, pair.keys); };
    AttentionBlockGradients part = kernel_->backward(queries(grad_out_), queries(q_), keys(k), keys(v),
                                                     {queries(merged_.out), queries(merged_.lse)}, pair.band);
    grad_q_.add(std::exchange(part.q, {}), pair.row, pair.query);
    grad_k.add(std::exchange(part.k, {}), pair.row, pair.key);
    grad_v.add(std::exchange(part.v, {}), pair.row, pair.key);
  }
}

at::Tensor BlockwiseGradients::grad_q() { return grad_q_.take().to(q_.scalar_type()); }

at::Tensor BlockwiseGradients::grad_sinks(const at::Tensor& sinks) const {
  return nn::grad_sinks(sinks, grad_out_, merged_);
}

}  // namespace titan::nn
