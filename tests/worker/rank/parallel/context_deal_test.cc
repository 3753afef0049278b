#include <gtest/gtest.h>

#include <numeric>

#include "tests/testing/draw.h"
#include "tests/worker/rank/nn/plain_attention.h"
#include "worker/rank/parallel/context_load_balance.h"

namespace titan::parallel {
namespace {

struct RandomRow {
  int ranks = 0;
  std::vector<LayersOfMask> layers;
  at::Tensor documents;
  std::vector<int64_t> work;
};

// Draws a row of documents of random lengths, with windows and chunks, in up to three kinds of layers.
RandomRow random_row(titan::testing::Draw& pick) {
  RandomRow row{.ranks = static_cast<int>(pick({2, 3, 4, 8}))};
  const int64_t rows = pick({1, 1, 3}), tokens = 48 * pick({1, 2, 5, 11});
  for (int64_t kinds = pick({1, 2, 3}); kinds > 0; --kinds) {
    row.layers.push_back(
        {{.window = pick({0, 0, 9, 40}), .chunk = pick({0, 0, 25}), .documents = pick({0, 1, 1}) == 1}, pick({1, 5})});
    nn::AttentionMask& mask = row.layers.back().mask;
    mask.causal = mask.window > 0 || pick({0, 1, 1}) == 1;
  }
  row.documents = testing::random_documents(rows, tokens, pick({1, 10}) / 100.0);
  row.work = attention_work(row.documents, rows, tokens, row.layers);
  return row;
}

int64_t mean_work(const RandomRow& row) {
  return std::accumulate(row.work.begin(), row.work.end(), int64_t{0}) / row.ranks;
}

// Compares the counted work with every mask written out.
TEST(ContextDealTest, WorkCountsTheVisibleKeys) {
  at::manual_seed(1);
  titan::testing::Draw pick(1);
  for (int i = 0; i < 40; ++i) {
    const RandomRow row = random_row(pick);
    const int64_t rows = row.documents.size(0), tokens = row.documents.size(1);
    at::Tensor seen = at::zeros({tokens}, at::kLong);
    for (const auto& [mask, count] : row.layers) {
      const at::Tensor visible = testing::visible_keys(mask, row.documents, tokens).expand({rows, tokens, tokens});
      seen += count * visible.sum(at::IntArrayRef{0, 2});
    }
    EXPECT_TRUE(at::tensor(row.work, at::kLong).equal(seen)) << "row " << i;
  }
}

// Every position is dealt once. Each rank has the same number of positions, ascending and in at most eight pieces.
TEST(ContextDealTest, SharesAreEqualPartsOfTheRow) {
  at::manual_seed(2);
  titan::testing::Draw pick(2);
  int dealt = 0;
  for (int i = 0; i < 200; ++i) {
    const RandomRow row = random_row(pick);
    const int64_t tokens = row.documents.size(1);
    const nn::RowShares shares = split_by_work(row.work, row.ranks);
    ASSERT_EQ(shares.size(), row.ranks);
    std::vector<int> times(tokens);
    for (const std::vector<nn::Segment>& share : shares) {
      EXPECT_LE(share.size(), 8);
      int64_t length = 0, end = 0;
      for (const nn::Segment& segment : share) {
        EXPECT_GE(segment.position, end);
        end = segment.position + segment.length;
        length += segment.length;
        for (int64_t position = segment.position; position < end; ++position) ++times.at(position);
      }
      EXPECT_EQ(length, tokens / row.ranks);
      dealt += share.size() > 2;
    }
    EXPECT_EQ(times, std::vector<int>(tokens, 1));
  }
  EXPECT_GT(dealt, 100) << "nothing was dealt in blocks";
}

TEST(ContextDealTest, NeverMoreWorkThanHeadTailOrContiguous) {
  at::manual_seed(3);
  titan::testing::Draw pick(3);
  int gains = 0;
  for (int i = 0; i < 300; ++i) {
    const RandomRow row = random_row(pick);
    const int64_t tokens = row.documents.size(1);
    const int64_t largest_work = max_work(split_by_work(row.work, row.ranks), row.work);
    const int64_t head_tail = max_work(split_head_tail(tokens, row.ranks), row.work);
    EXPECT_LE(largest_work, head_tail);
    EXPECT_LE(largest_work, max_work(split_contiguous(tokens, row.ranks), row.work));
    EXPECT_GE(largest_work, mean_work(row));
    gains += largest_work < head_tail;
  }
  EXPECT_GT(gains, 150);
}

// Plain causal rows are split so even where blocks would be as even, since fewer pieces need fewer calls.
TEST(ContextDealTest, PlainCausalRowsAreSplitHeadTail) {
  for (const int ranks : {2, 3, 8}) {
    const std::vector<int64_t> work = attention_work({}, 2, 960, {{{}, 4}});
    const nn::RowShares shares = split_by_work(work, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(shares[rank].size(), 2);
      EXPECT_EQ(shares[rank][0].position, rank * 480 / ranks);
      EXPECT_EQ(shares[rank][1].position, 960 - (rank + 1) * 480 / ranks);
    }
  }
}

// PyTorch's balancer has this example: documents of 4, 8 and 4 blocks on two ranks, 28 of 56 for each.
TEST(ContextDealTest, DocumentsOfAnExampleAreEven) {
  const std::vector<int64_t> work{1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4};
  EXPECT_EQ(max_work(split_head_tail(16, 2), work), 36);
  EXPECT_EQ(max_work(split_by_work(work, 2), work), 28);
}

// Adjacent keys of one owner need one call, so the number of calls grows with the pieces of a share and not with their
// square. Under a causal mask there is one call for each owner and piece of queries, and one more for the piece's own
// block.
TEST(ContextDealTest, CallsGrowWithThePiecesOfOneShare) {
  std::vector<int64_t> work(1024);
  for (size_t i = 0; i < work.size(); ++i) work[i] = i < 256 ? 100 : 1 + static_cast<int64_t>(i / 16 % 2);
  const nn::RowShares shares = split_by_work(work, 4);
  const nn::Spans one_document = nn::spans_of({}, 0, 1024);
  for (const std::vector<nn::Segment>& mine : shares) {
    EXPECT_GT(mine.size(), 2);
    size_t calls = 0;
    for (const std::vector<nn::Segment>& owned : shares) {
      calls += nn::visible_pairs(one_document, 0, mine, owned).size();
    }
    EXPECT_LE(calls, mine.size() * (shares.size() + 1));
  }
}

}  // namespace
}  // namespace titan::parallel
