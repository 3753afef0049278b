#include "worker/rank/parallel/context.h"

#include <c10/util/Exception.h>

#include <memory>
#include <utility>

namespace titan::parallel {

namespace {

nn::RowShares deal(const nn::MicrobatchContext& whole, const ContextParallel& context) {
  const int64_t seq_len = whole.tokens.size(1);
  const int ranks = context.group->size();
  switch (context.balance) {
    case Balance::kNone:
      return deal_in_order(seq_len, ranks);
    case Balance::kHeadTail:
      return deal_head_tail(seq_len, ranks);
    case Balance::kWork:
      return deal_by_work(work_of_queries(whole.documents, whole.tokens.size(0), seq_len, context.layers), ranks);
  }
  TORCH_CHECK(false, "context parallel: no such balance");
}

}  // namespace

nn::MicrobatchContext take_share(const nn::MicrobatchContext& whole, const ContextParallel& context) {
  if (context.group->size() == 1) return whole;
  const int64_t seq_len = whole.tokens.size(1);
  auto shares = std::make_shared<const nn::RowShares>(deal(whole, context));
  const std::vector<nn::Segment>& segments = shares->at(context.group->rank());
  const auto take = [&](const at::Tensor& tensor, int64_t dim) {
    if (!tensor.defined()) return tensor;
    std::vector<at::Tensor> parts;
    for (const nn::Segment& segment : segments) parts.push_back(tensor.narrow(dim, segment.position, segment.length));
    return at::cat(parts, dim);
  };
  nn::MicrobatchContext share = whole;
  share.tokens = take(whole.tokens, 1);
  share.labels = take(whole.labels, 1);
  const at::Tensor positions =
      whole.positions.defined() ? whole.positions : at::arange(seq_len, whole.tokens.options().dtype(at::kLong));
  share.positions = take(positions, 0);
  share.whole_row = seq_len;
  share.shares = std::move(shares);
  return share;
}

}  // namespace titan::parallel
