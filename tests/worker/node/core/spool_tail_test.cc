#include "worker/node/core/spool_tail.h"

#include "gtest/gtest.h"

namespace titan::node {
namespace {

std::vector<SpoolEvent> lines(int64_t first, int64_t last) {
  std::vector<SpoolEvent> result;
  for (int64_t i = first; i <= last; ++i) result.push_back({i, "{}", i * 10});
  return result;
}

// For any order of acknowledging, rewinding and reading, every event is sent in order.
TEST(SpoolTailTest, ResendsFromTheAcknowledgedPlace) {
  SpoolTail tail;
  std::vector<SpoolEvent> batch = lines(1, 10);
  EXPECT_TRUE(tail.take(batch, tail.offset(), 100, false).empty());
  EXPECT_EQ(batch.size(), 10u);
  EXPECT_EQ(tail.offset(), 100);
  EXPECT_TRUE(tail.acknowledge(4));
  EXPECT_FALSE(tail.acknowledge(4));
  EXPECT_FALSE(tail.acknowledge(2)) << "an old acknowledgement";
  tail.rewind();
  EXPECT_EQ(tail.offset(), 40);
  batch = lines(5, 10);
  EXPECT_TRUE(tail.take(batch, tail.offset(), 100, false).empty());
  EXPECT_TRUE(tail.acknowledge(99));
  EXPECT_EQ(tail.acknowledged(), (SpoolTail::Place{100, 10}));
  SpoolTail next(tail.acknowledged());
  EXPECT_EQ(next.offset(), 100);
  batch = lines(11, 11);
  EXPECT_TRUE(next.take(batch, 100, 110, false).empty());
}

std::vector<int64_t> numbers(const std::vector<SpoolEvent>& lines) {
  std::vector<int64_t> result;
  for (const SpoolEvent& line : lines) result.push_back(line.sequence);
  return result;
}

// Events after a gap are sent, and the missing ones are reported.
TEST(SpoolTailTest, GapIsReportedAndLaterEventsAreTaken) {
  SpoolTail tail;
  std::vector<SpoolEvent> batch = lines(1, 2);
  batch.push_back({5, "{}", 50});
  batch.push_back({6, "{}", 60});
  const std::vector<SpoolTail::Gap> gaps = tail.take(batch, 0, 60, false);
  EXPECT_EQ(numbers(batch), (std::vector<int64_t>{1, 2, 5, 6}));
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].offset, 20);
  EXPECT_EQ(gaps[0].first, 3);
  EXPECT_EQ(gaps[0].last, 4);
  EXPECT_EQ(tail.offset(), 60);
  EXPECT_TRUE(tail.acknowledge(6));
  EXPECT_EQ(tail.acknowledged(), (SpoolTail::Place{60, 6}));
}

// A damaged number must not make all later events look old.
TEST(SpoolTailTest, JumpingNumberNeedsASuccessor) {
  SpoolTail tail;
  std::vector<SpoolEvent> batch = lines(1, 2);
  batch.push_back({900, "{}", 30});
  EXPECT_TRUE(tail.take(batch, 0, 30, false).empty());
  EXPECT_EQ(numbers(batch), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(tail.offset(), 20) << "until its successor arrives";
  batch = {{900, "{}", 30}, {4, "{}", 40}, {5, "{}", 50}};
  const std::vector<SpoolTail::Gap> gaps = tail.take(batch, 20, 50, false);
  EXPECT_EQ(numbers(batch), (std::vector<int64_t>{4, 5}));
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].first, 3);
  EXPECT_EQ(gaps[0].last, 3);
  // The rank is gone, so no other event can come.
  batch = {{8, "{}", 80}};
  EXPECT_EQ(tail.take(batch, 50, 80, true).size(), 1u);
  EXPECT_EQ(numbers(batch), (std::vector<int64_t>{8}));
}

TEST(SpoolTailTest, RepeatedEventsAreLeftOut) {
  SpoolTail tail;
  std::vector<SpoolEvent> batch = {{1, "{}", 10}, {2, "{}", 20}, {1, "{}", 30}, {3, "{}", 40}};
  EXPECT_TRUE(tail.take(batch, 0, 40, false).empty());
  EXPECT_EQ(numbers(batch), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(tail.offset(), 40);
  // The file was cut, and is read from its start.
  batch = {{4, "{}", 10}};
  EXPECT_TRUE(tail.take(batch, 0, 10, false).empty());
  EXPECT_EQ(tail.offset(), 10);
  EXPECT_TRUE(tail.acknowledge(4));
  EXPECT_EQ(tail.acknowledged(), (SpoolTail::Place{10, 4}));
}

TEST(SpoolTailTest, TheWindowOpensWithAcknowledgements) {
  SpoolTail tail;
  std::vector<SpoolEvent> batch = {{1, "{}", SpoolTail::kWindowBytes - 1}};
  EXPECT_TRUE(tail.take(batch, 0, SpoolTail::kWindowBytes - 1, false).empty());
  EXPECT_TRUE(tail.may_read());
  batch = {{2, "{}", SpoolTail::kWindowBytes}};
  EXPECT_TRUE(tail.take(batch, tail.offset(), SpoolTail::kWindowBytes, false).empty());
  EXPECT_FALSE(tail.may_read());
  EXPECT_TRUE(tail.acknowledge(1));
  EXPECT_TRUE(tail.may_read());
}

}  // namespace
}  // namespace titan::node
