#include "controller/job/update.h"

#include "controller/job/record.h"
#include "gtest/gtest.h"

namespace titan::job {
namespace {

// A store may hold an update that an earlier controller accepted.
TEST(UpdateTest, EncodedFormIsStable) {
  Update update{.priority = 3, .title = "a \"title\"", .etag = "e", .actor = "ann"};
  update.labels = {{"gone", std::nullopt}, {"team", "vision"}};
  EXPECT_EQ(encode(update),
            R"({"actor":"ann","etag":"e","labels":{"gone":null,"team":"vision"},"priority":3,"title":"a \"title\""})");
  update.all_labels = std::map<std::string, std::string>{{"team", "speech"}};
  EXPECT_EQ(encode(Update{.all_labels = update.all_labels}),
            R"({"actor":"","all_labels":{"team":"speech"},"etag":"","labels":{}})");
}

TEST(UpdateTest, UnsetMembersStayUnset) {
  const absl::StatusOr<Update> least = decode<Update>(R"({"actor":"","etag":"","labels":{}})");
  ASSERT_TRUE(least.ok()) << least.status();
  EXPECT_FALSE(least->priority || least->title || least->all_labels);
  EXPECT_TRUE(least->labels.empty());

  Update update{.title = "", .all_labels = std::map<std::string, std::string>{}};
  update.labels = {{"gone", std::nullopt}, {"empty", ""}};
  const absl::StatusOr<Update> again = decode<Update>(encode(update));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->title, "");
  EXPECT_EQ(again->all_labels, update.all_labels);
  EXPECT_EQ(again->labels, update.labels);
}

TEST(UpdateTest, ADamagedRecordIsDataLoss) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"actor":"","etag":""})", R"({"actor":1,"etag":"","labels":{}})",
        R"({"actor":"","etag":"","labels":{"a":1}})", R"({"actor":"","etag":"","labels":{},"priority":"high"})"}) {
    EXPECT_EQ(decode<Update>(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace titan::job
