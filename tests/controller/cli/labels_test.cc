#include "controller/cli/job_query.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(LabelsTest, ParsesLabelsOfANewJob) {
  EXPECT_THAT(*parse_labels({"team=vision", "run=a=b", "team=audio", "empty="}),
              UnorderedElementsAre(Pair("team", "audio"), Pair("run", "a=b"), Pair("empty", "")));
  for (const char* bad : {"team", "=x", ""}) {
    EXPECT_EQ(parse_labels({bad}).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(LabelsTest, ChangesNameThePathsOfTheMask) {
  v1::UpdateJobRequest request;
  ASSERT_TRUE(add_label_changes({"team=vision", "old-", "a.b/c=1-"}, request).ok());
  EXPECT_THAT(request.update_mask().paths(), ElementsAre("labels.team", "labels.old", "labels.a.b/c"));
  EXPECT_THAT(request.job().labels(), UnorderedElementsAre(Pair("team", "vision"), Pair("a.b/c", "1-")));
  const absl::Status bad = add_label_changes({"team"}, request);
  EXPECT_THAT(std::string(bad.message()), HasSubstr("KEY- to remove it"));
  EXPECT_FALSE(add_label_changes({"-"}, request).ok());
}

TEST(LabelsTest, SelectorsAreFilters) {
  EXPECT_EQ(*label_filter("team=vision"), R"(labels."team" = "vision")");
  EXPECT_EQ(*label_filter("team!=a\"b\\"), R"(labels."team" != "a\"b\\")");
  EXPECT_EQ(*label_filter("team"), R"(labels:"team")");
  EXPECT_FALSE(label_filter("=x").ok());
  EXPECT_FALSE(label_filter("!=x").ok());
}

}  // namespace
}  // namespace titan::cli
