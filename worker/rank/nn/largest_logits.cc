#include "worker/rank/nn/largest_logits.h"

#include <algorithm>
#include <limits>

#include "worker/rank/nn/layers.h"

namespace titan::nn {
namespace {

constexpr int64_t kMostLogits = 1 << 24;
constexpr int64_t kMostKeys = 1024;

at::Tensor tile_of(const at::Tensor& heads, int64_t row, int64_t begin, int64_t length, at::ScalarType type) {
  const at::Tensor tokens = heads.narrow(2, begin, length);
  return (row == kAllRows ? tokens : tokens.narrow(0, row, 1)).to(type);
}

// Of the queries [query, query + queries) and keys of one pair, counted from its own first ones: [H].
at::Tensor largest_of_tile(const at::Tensor& q, const at::Tensor& k, const Band& band) {
  const int64_t batch = q.size(0), heads = q.size(1), queries = q.size(2), kv_heads = k.size(1), keys = k.size(2);
  at::Tensor logits = at::matmul(q.reshape({batch, kv_heads, heads / kv_heads * queries, q.size(3)}), k.transpose(2, 3))
                          .view({batch, heads, queries, keys});
  if (band.cuts_before(queries) || band.cuts_after(keys)) {
    const at::Tensor seen = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril(band.last).triu(band.first);
    logits.masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  return logits.amax(at::IntArrayRef{0, 2, 3});
}

}  // namespace

void note_largest_logits(const at::Tensor& q, const at::Tensor& k, const std::vector<BlockPair>& pairs, double scale,
                         at::Tensor largest) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(largest.dim() == 1 && largest.size(0) == q.size(1), "largest logits: ", largest.sizes(), " for ",
              q.size(1), " heads");
  const at::ScalarType type = accumulate_type(q.scalar_type());
  for (const BlockPair& pair : pairs) {
    const int64_t lines = (pair.row == kAllRows ? q.size(0) : 1) * q.size(1);
    const int64_t step = std::clamp<int64_t>(kMostLogits / (lines * std::min(pair.keys, kMostKeys)), 1, pair.queries);
    for (int64_t query = 0; query < pair.queries; query += step) {
      const int64_t queries = std::min(step, pair.queries - query);
      const at::Tensor some = tile_of(q, pair.row, pair.query + query, queries, type);
      // What these queries see at all.
      const int64_t end = std::min(pair.keys, query + queries + pair.band.last);
      for (int64_t key = std::max<int64_t>(0, query + pair.band.first); key < end; key += kMostKeys) {
        const int64_t keys = std::min(kMostKeys, end - key);
        const Band band{.first = pair.band.first + query - key, .last = pair.band.last + query - key};
        const at::Tensor seen = largest_of_tile(some, tile_of(k, pair.row, pair.key + key, keys, type), band);
        largest.copy_(at::maximum(largest, seen.to(largest.scalar_type()) * scale));
      }
    }
  }
}

}  // namespace titan::nn
