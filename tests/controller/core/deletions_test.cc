#include "controller/core/deletions.h"

#include "controller/core/requests.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

job::Tombstone tombstone_of(const std::string& name, int64_t time_ns) {
  job::Tombstone tombstone;
  tombstone.name = name;
  tombstone.time_ns = time_ns;
  return tombstone;
}

TEST(DeletionsTest, TheOldestIsForgottenFirst) {
  Deletions deletions;
  deletions.remember("a", tombstone_of("first", 20));
  deletions.remember("b", tombstone_of("second", 10));
  EXPECT_EQ(deletions.oldest_until(9), std::nullopt);
  EXPECT_EQ(deletions.oldest_until(10), "b");
  EXPECT_EQ(deletions.forget("b").name, "second");
  EXPECT_EQ(deletions.find("b"), nullptr);
  EXPECT_EQ(deletions.oldest_until(15), std::nullopt);
  EXPECT_EQ(deletions.oldest_until(20), "a");
}

// If two users delete a job at the same time, the first one counts.
TEST(DeletionsTest, FirstDeletionCounts) {
  Deletions deletions;
  deletions.remember("a", tombstone_of("job", 10));
  deletions.remember("a", tombstone_of("job", 5));
  EXPECT_EQ(deletions.find("a")->time_ns, 10);
  EXPECT_EQ(deletions.oldest_until(5), std::nullopt);
  deletions.forget("a");
  EXPECT_EQ(deletions.oldest_until(10), std::nullopt);
}

TEST(DeletionsTest, DeletionInProgressIsNotRememberedYet) {
  Deletions deletions;
  deletions.begin("a");
  EXPECT_TRUE(deletions.is_under_way("a"));
  EXPECT_FALSE(deletions.contains("a"));
  deletions.end("a");
  EXPECT_FALSE(deletions.is_under_way("a"));
}

TEST(RequestsTest, ADeletedJobDoesNotTakeTheRequestOfAnother) {
  Requests requests;
  requests.add("r", "a");
  requests.add_if_new("r", "deleted");
  EXPECT_EQ(*requests.find("r"), "a");
  requests.forget("r", "deleted");
  EXPECT_EQ(*requests.find("r"), "a");
  requests.forget("r", "a");
  EXPECT_EQ(requests.find("r"), nullptr);
}

TEST(RequestsTest, EmptyRequestIdsAreIgnored) {
  Requests requests;
  requests.add("", "a");
  requests.add_if_new("", "b");
  EXPECT_EQ(requests.find(""), nullptr);
}

}  // namespace
}  // namespace titan::core
