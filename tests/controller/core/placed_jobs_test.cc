#include "controller/core/jobs.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

TEST(PlacedJobsTest, JobsAreOnTheNodesTheyWereAddedTo) {
  PlacedJobs placed;
  placed.add("n1", "b");
  placed.add("n1", "a");
  placed.add("n2", "a");
  placed.add("n2", "a");
  EXPECT_EQ(placed.on("n1"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(placed.on("n2"), std::vector<std::string>{"a"});
  placed.remove("n1", "a");
  EXPECT_EQ(placed.on("n1"), std::vector<std::string>{"b"});
  EXPECT_EQ(placed.on("n2"), std::vector<std::string>{"a"});
  placed.remove("n2", "a");
  placed.remove("n2", "a");
  EXPECT_TRUE(placed.on("n2").empty());
  EXPECT_TRUE(placed.on("n3").empty());
}

}  // namespace
}  // namespace titan::core
