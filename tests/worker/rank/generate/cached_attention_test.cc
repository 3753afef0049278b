// Compares one new token's attention over a ring of slots with attention over the whole text.

#include <cmath>

#include "gtest/gtest.h"
#include "worker/rank/generate/kv_cache.h"

namespace titan::generate {
namespace {

// Computes plain softmax attention of the last token of k, v [Hkv, T, D] over the tokens that the mask shows.
at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const nn::AttentionMask& mask,
                     double scale, const at::Tensor& sinks, double softcap) {
  const int64_t tokens = k.size(1), shared = q.size(0) / k.size(0);
  int64_t first = 0;
  if (mask.window > 0) first = std::max(first, tokens - mask.window);
  if (mask.chunk > 0) first = std::max(first, (tokens - 1) / mask.chunk * mask.chunk);
  std::vector<at::Tensor> heads;
  for (int64_t head = 0; head < q.size(0); ++head) {
    const at::Tensor keys = k[head / shared].slice(0, first), values = v[head / shared].slice(0, first);
    at::Tensor scores = at::mv(keys, q[head]) * scale;
    if (softcap > 0) scores = softcap * at::tanh(scores / softcap);
    at::Tensor weights = at::exp(scores);
    at::Tensor sum = weights.sum();
    if (sinks.defined()) sum = sum + at::exp(sinks[head]);
    heads.push_back(at::mv(values.t(), weights / sum));
  }
  return at::stack(heads);
}

TEST(CachedAttentionTest, RingAttentionMatchesMaskedAttention) {
  at::manual_seed(5);
  const int64_t heads = 4, shared = 2, dim = 6, value_dim = 5, rows = 3, longest = 40;
  for (const nn::AttentionMask& mask :
       {nn::AttentionMask{}, nn::AttentionMask{.window = 7}, nn::AttentionMask{.chunk = 9},
        nn::AttentionMask{.window = 100}, nn::AttentionMask{.window = 1}}) {
    for (const bool with_sinks : {false, true}) {
      const int64_t ring = ring_size(mask, longest);
      const double softcap = with_sinks ? 0 : mask.window > 0 ? 1.2 : 0;
      const at::Tensor k = at::randn({rows, shared, longest, dim}, at::kDouble);
      const at::Tensor v = at::randn({rows, shared, longest, value_dim}, at::kDouble);
      const at::Tensor sinks = with_sinks ? at::randn({heads}, at::kDouble) : at::Tensor();
      at::Tensor ring_k = at::full({rows, shared, ring, dim}, 1e3, at::kDouble);  // Wrong if an unwritten slot is read.
      at::Tensor ring_v = at::full({rows, shared, ring, value_dim}, 1e3, at::kDouble);
      const std::vector<int64_t> ahead = {0, 3, 11};  // Rows are of unequal length.
      for (int64_t step = 0; step + 11 < longest; ++step) {
        std::vector<int64_t> positions;
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t from = step == 0 ? 0 : step + ahead[row], to = step + ahead[row];
          for (int64_t at = from; at <= to; ++at) {
            ring_k[row].select(1, at % ring).copy_(k[row].select(1, at));
            ring_v[row].select(1, at % ring).copy_(v[row].select(1, at));
          }
          positions.push_back(to);
        }
        const int64_t used = std::min(ring, step + 12);
        const at::Tensor places = at::tensor(positions, at::kLong);
        const at::Tensor q = at::randn({rows, heads, dim}, at::kDouble);
        const at::Tensor got = attend_slots(q, ring_k.narrow(2, 0, used), ring_v.narrow(2, 0, used),
                                            visible_slots(places, ring, used, mask), 0.3, sinks, softcap);
        for (int64_t row = 0; row < rows; ++row) {
          const at::Tensor want = reference(q[row], k[row].slice(1, 0, positions[row] + 1),
                                            v[row].slice(1, 0, positions[row] + 1), mask, 0.3, sinks, softcap);
          ASSERT_LE((got[row] - want).abs().max().item<double>(), 1e-12)
              << "window " << mask.window << " chunk " << mask.chunk << " step " << step << " row " << row;
        }
      }
    }
  }
}

TEST(CachedAttentionTest, RingIsAtMostAWindowOrChunk) {
  EXPECT_EQ(ring_size({}, 50), 50);
  EXPECT_EQ(ring_size({.window = 8}, 50), 8);
  EXPECT_EQ(ring_size({.chunk = 16}, 50), 16);
  EXPECT_EQ(ring_size({.window = 80}, 50), 50);
}

// Attention on latents without expanding them equals attention on the expanded keys and values.
TEST(CachedAttentionTest, LatentAttentionMatchesExpandedAttention) {
  at::manual_seed(6);
  const int64_t rows = 2, heads = 3, plain = 4, rotary = 2, value_dim = 5, rank = 7, slots = 11;
  const at::Tensor q = at::randn({rows, heads, plain + rotary}, at::kDouble);
  const at::Tensor latents = at::randn({rows, slots, rank}, at::kDouble);
  const at::Tensor keys = at::randn({rows, slots, rotary}, at::kDouble);
  const at::Tensor projection = at::randn({heads * (plain + value_dim), rank}, at::kDouble);
  const at::Tensor visible = visible_slots(at::tensor({10, 6}, at::kLong), slots, slots, {});
  const at::Tensor projected =
      at::matmul(latents, projection.t()).view({rows, slots, heads, plain + value_dim}).transpose(1, 2);
  const at::Tensor k = at::cat({projected.narrow(3, 0, plain), keys.unsqueeze(1).expand({-1, heads, -1, -1})}, 3);
  const at::Tensor want = attend_slots(q, k, projected.narrow(3, plain, value_dim), visible, 0.4, {});
  const at::Tensor got = attend_latents(q, latents, keys, projection, visible, 0.4);
  EXPECT_LE((got - want).abs().max().item<double>(), 1e-12);
}

}  // namespace
}  // namespace titan::generate
