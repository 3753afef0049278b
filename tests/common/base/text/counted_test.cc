#include "common/base/text/quantities.h"
#include "gtest/gtest.h"

namespace titan {
namespace {

TEST(CountedTest, OnlyOneIsSingular) {
  EXPECT_EQ(counted(1, "stage"), "1 stage");
  EXPECT_EQ(counted(0, "stage"), "0 stages");
  EXPECT_EQ(counted(size_t{2}, "microbatch", "microbatches"), "2 microbatches");
  EXPECT_EQ(counted(int64_t{1}, "rank needs", "ranks need"), "1 rank needs");
}

}  // namespace
}  // namespace titan
