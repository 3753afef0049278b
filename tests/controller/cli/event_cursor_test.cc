#include <vector>

#include "controller/cli/logs.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

// Reads a log of events by revision in streams that each break after `length` events.
std::vector<int> read_in_pieces(const std::vector<int64_t>& log, size_t length) {
  std::vector<int> seen;
  EventCursor cursor(0);
  for (int stream = 0; stream < 50; ++stream) {
    const int64_t after = cursor.resume();
    size_t sent = 0;
    for (size_t i = 0; i < log.size() && sent < length; ++i) {
      if (log[i] <= after) continue;
      ++sent;
      if (cursor.is_new(log[i])) seen.push_back(static_cast<int>(i));
    }
  }
  return seen;
}

TEST(EventCursorTest, ABrokenStreamNeitherLosesNorRepeatsAnEvent) {
  const std::vector<int64_t> log = {3, 3, 4, 7, 7, 7, 9, 12, 12};
  for (size_t length = 4; length <= log.size();
       ++length) {  // Longer than the largest number of events of one revision.
    EXPECT_EQ(read_in_pieces(log, length), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8})) << length;
  }
}

TEST(EventCursorTest, BeginsAfterTheGivenRevision) {
  EventCursor cursor(5);
  EXPECT_EQ(cursor.resume(), 5);
  EXPECT_TRUE(cursor.is_new(6));
  EXPECT_EQ(cursor.resume(), 5);
  EXPECT_FALSE(cursor.is_new(6));
  EXPECT_TRUE(cursor.is_new(6));
  EXPECT_TRUE(cursor.is_new(8));
  EXPECT_EQ(cursor.resume(), 6);
}

// After a restore the reader continues from the store's newest revision; the revision that it was started with may be
// wrong.
TEST(EventCursorTest, RestoredStoreIsReadFromItsNewestRevision) {
  EventCursor cursor(0);
  EXPECT_EQ(cursor.resume(), 0);
  EXPECT_FALSE(cursor.set_back(5)) << "the first stream's revision is the caller's";
  EXPECT_TRUE(cursor.is_new(90));
  EXPECT_TRUE(cursor.is_new(91));
  EXPECT_EQ(cursor.resume(), 90);
  EXPECT_TRUE(cursor.set_back(40));
  EXPECT_EQ(cursor.resume(), 40);
  EXPECT_TRUE(cursor.is_new(41)) << "none of it was seen before";
}

}  // namespace
}  // namespace titan::cli
