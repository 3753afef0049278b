#include "worker/core/spool_tail.h"

#include "gtest/gtest.h"

namespace titan::node {
namespace {

std::vector<SpoolLine> lines(int64_t first, int64_t last) {
  std::vector<SpoolLine> result;
  for (int64_t i = first; i <= last; ++i) result.push_back({i, "{}", i * 10});
  return result;
}

// Whatever is acknowledged, rewound and read again in whatever order: every event comes, in order.
TEST(SpoolTailTest, SendsAgainFromTheAcknowledgedPlace) {
  SpoolTail tail;
  std::vector<SpoolLine> batch = lines(1, 10);
  EXPECT_TRUE(tail.take(batch, 100));
  EXPECT_EQ(batch.size(), 10u);
  EXPECT_EQ(tail.offset(), 100);
  EXPECT_TRUE(tail.acknowledge(4));
  EXPECT_FALSE(tail.acknowledge(4));
  EXPECT_FALSE(tail.acknowledge(2)) << "an old acknowledgement";
  tail.rewind();
  EXPECT_EQ(tail.offset(), 40);
  batch = lines(5, 10);
  EXPECT_TRUE(tail.take(batch, 100));
  EXPECT_TRUE(tail.acknowledge(99));
  EXPECT_EQ(tail.acknowledged(), (SpoolTail::Place{100, 10}));
  SpoolTail next(tail.acknowledged());
  EXPECT_EQ(next.offset(), 100);
  batch = lines(11, 11);
  EXPECT_TRUE(next.take(batch, 110));
}

TEST(SpoolTailTest, AGapIsDamageAndOnlyWhatLiesBeforeItIsTaken) {
  SpoolTail tail;
  std::vector<SpoolLine> batch = lines(1, 2);
  batch.push_back({4, "{}", 40});
  EXPECT_FALSE(tail.take(batch, 40));
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(tail.offset(), 20);
  batch = lines(1, 1);
  EXPECT_FALSE(tail.take(batch, 30)) << "what was sent comes a second time";
  EXPECT_TRUE(batch.empty());
}

TEST(SpoolTailTest, TheWindowOpensWithAcknowledgements) {
  SpoolTail tail;
  std::vector<SpoolLine> batch = {{1, "{}", SpoolTail::kWindowBytes - 1}};
  EXPECT_TRUE(tail.take(batch, SpoolTail::kWindowBytes - 1));
  EXPECT_TRUE(tail.may_read());
  batch = {{2, "{}", SpoolTail::kWindowBytes}};
  EXPECT_TRUE(tail.take(batch, SpoolTail::kWindowBytes));
  EXPECT_FALSE(tail.may_read());
  EXPECT_TRUE(tail.acknowledge(1));
  EXPECT_TRUE(tail.may_read());
}

}  // namespace
}  // namespace titan::node
