#include "common/rank_protocol/name_list.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::rank_protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kMaxNames = 100'000;

std::string refused(absl::string_view text, size_t max_names = kMaxNames) {
  const absl::Status status = unfold_names(text, max_names).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(NameListTest, ConsecutiveNamesFoldIntoOneRange) {
  EXPECT_EQ(fold_names({"n1"}), "n1");
  EXPECT_EQ(fold_names({"gpu-8", "gpu-9", "gpu-10"}), "gpu-[8-10]");
  EXPECT_EQ(fold_names({"gpu-08", "gpu-09", "gpu-10", "login"}), "gpu-[08-10],login");
  EXPECT_EQ(fold_names({"a1", "a2", "a4", "b5", "a6"}), "a[1-2,4],b5,a6");
  EXPECT_EQ(fold_names({"a3", "a2", "a02", "a"}), "a[3,2,02],a") << "order is kept, because ranks follow it";
}

// Any list of names is restored exactly.
TEST(NameListTest, EveryListRoundTrips) {
  std::vector<std::string> many;
  for (int i = 0; i < 3000; ++i) many.push_back(absl::StrCat("node-", i * 7919 % 3001));
  const std::vector<std::vector<std::string>> lists = {
      many,
      {"n9", "n10", "n011", "n12", "n12"},
      {"x", "x0", "x00", "x1", "x01", "x"},
      {"a99999999999999999999", "a99999999999999999998", "7", "8"},
      {"ip-10-0-3-254", "ip-10-0-3-255", "ip-10-0-4-0", "ip-10-0-4-1"},
  };
  for (const auto& names : lists) {
    const auto read = unfold_names(fold_names(names), kMaxNames);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, names);
  }
  EXPECT_THAT(*unfold_names("b[09-11,3],c", kMaxNames), ElementsAre("b09", "b10", "b11", "b3", "c"));
}

TEST(NameListTest, RefusesInvalidLists) {
  EXPECT_THAT(refused(""), HasSubstr("an empty name"));
  EXPECT_THAT(refused("a,,b"), HasSubstr("an empty name"));
  EXPECT_THAT(refused("a[1-3"), HasSubstr("without its ']'"));
  EXPECT_THAT(refused("a[1]b"), HasSubstr("',' is missing"));
  EXPECT_THAT(refused("a]"), HasSubstr("',' is missing"));
  for (const char* none : {"a[]", "a[x]", "a[1-]", "a[-2]", "a[1-2-3]", "a[+1]", "a[1234567890123456789]"}) {
    EXPECT_THAT(refused(none), HasSubstr("not a range")) << none;
  }
  EXPECT_THAT(refused("a[3-1]"), HasSubstr("descending range"));
  EXPECT_THAT(refused(std::string(64, 'a')), HasSubstr("64 characters"));
}

// A text of a few bytes must not allocate all memory.
TEST(NameListTest, NumberOfNamesIsLimited) {
  EXPECT_THAT(refused("a[0-999999999999999999]", 1000), HasSubstr("more than 1000 names"));
  EXPECT_EQ(unfold_names("a[0-999]", 1000)->size(), 1000u);
}

}  // namespace
}  // namespace titan::rank_protocol
