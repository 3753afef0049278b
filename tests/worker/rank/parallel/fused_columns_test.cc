#include "worker/rank/parallel/fused_columns.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/testing/draw.h"
#include "tests/worker/rank/comm/thread_ranks.h"

namespace titan::parallel {
namespace {

using mesh::Axis;

// Returns the columns of `whole` that a rank has as shares.
at::Tensor shares_of(const at::Tensor& whole, const std::vector<int64_t>& widths, const comm::Group& group) {
  std::vector<at::Tensor> shares;
  int64_t begin = 0;
  for (const int64_t width : widths) {
    const int64_t count = width / group.size();
    shares.push_back(whole.narrow(-1, begin + group.rank() * count, count));
    begin += width;
  }
  return at::cat(shares, -1);
}

// Both directions on random projections, any number of ranks, and their backward passes, which are the other direction.
TEST(FusedColumnsTest, ExchangesPiecesAndShares) {
  at::manual_seed(1);
  titan::testing::Draw pick(1);
  for (int i = 0; i < 12; ++i) {
    const int ranks = static_cast<int>(pick({2, 3, 4}));
    std::vector<int64_t> widths;
    int64_t sum = 0;
    for (int64_t parts = pick({1, 2, 3, 4}); parts > 0; --parts) {
      widths.push_back(ranks * pick({1, 2, 5, 8}));
      sum += widths.back();
    }
    const at::Tensor whole = at::randn({2, 3, sum}), grad = at::randn({2, 3, sum});
    testing::run_ranks({.tp = ranks}, ranks, {Axis::kTensor}, [&](testing::ThreadRank& self) {
      const comm::Group& group = self.mesh->group(Axis::kTensor);
      const auto fused = c10::make_intrusive<FusedColumns>(widths, group);
      const int64_t count = sum / ranks;
      const auto piece_of = [&](const at::Tensor& of) { return of.narrow(-1, group.rank() * count, count); };
      const at::Tensor piece = piece_of(whole).detach().requires_grad_();
      const at::Tensor shares = to_shares(piece, fused);
      EXPECT_TRUE(shares.equal(shares_of(whole, widths, group)));
      const auto of_piece = torch::autograd::grad({shares}, {piece}, {shares_of(grad, widths, group)});
      EXPECT_TRUE(of_piece[0].equal(piece_of(grad)));
      const at::Tensor input = shares.detach().requires_grad_();
      const at::Tensor back = to_pieces(input, fused);
      EXPECT_TRUE(back.equal(piece_of(whole)));
      const auto of_shares = torch::autograd::grad({back}, {input}, {piece_of(grad)});
      EXPECT_TRUE(of_shares[0].equal(shares_of(grad, widths, group)));
      EXPECT_THROW(to_shares(whole, fused), c10::Error);
    });
  }
}

TEST(FusedColumnsTest, RefusesWidthsThatDoNotDivide) {
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    EXPECT_THROW(FusedColumns({4, 3}, self.mesh->group(Axis::kTensor)), c10::Error);
  });
}

}  // namespace
}  // namespace titan::parallel
