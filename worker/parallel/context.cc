#include "worker/parallel/context.h"

#include <c10/util/Exception.h>

namespace titan::parallel {

std::vector<nn::Segment> share_of(int64_t seq_len, int rank, const ContextParallel& context) {
  const int64_t ranks = context.group->size();
  const int64_t chunks = context.balance ? 2 * ranks : ranks;
  TORCH_CHECK(seq_len % chunks == 0, "context parallel: rows of ", seq_len, " tokens cannot be cut into ", chunks,
              " equal chunks for ", ranks, " ranks; make the sequence length a multiple of ", chunks);
  const int64_t length = seq_len / chunks;
  if (!context.balance) return {{rank * length, length}};
  return {{rank * length, length}, {(chunks - 1 - rank) * length, length}};
}

nn::MicrobatchContext take_share(const nn::MicrobatchContext& whole, const ContextParallel& context) {
  if (context.group->size() == 1) return whole;
  const int64_t seq_len = whole.tokens.size(1);
  const std::vector<nn::Segment> segments = share_of(seq_len, context.group->rank(), context);
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
  return share;
}

}  // namespace titan::parallel
