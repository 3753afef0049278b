#include "controller/reconcile/published.h"

#include "gtest/gtest.h"

namespace titan::reconcile {
namespace {

JobViewPtr view(const std::string& uid, int64_t order) {
  auto record = std::make_shared<job::JobRecord>();
  record->uid = uid;
  record->name = "projects/default/jobs/" + uid;
  record->order = order;
  auto made = std::make_shared<JobView>();
  made->record = record;
  return made;
}

TEST(PublishedTest, AWatchFromARevisionSeesWhatFollows) {
  Published published(10);
  published.publish({view("a", 1)}, 11);
  published.publish({view("b", 2)}, 12);
  published.publish({view("a", 1)}, 0);  // A reason changed: no revision of its own.
  published.publish({view("b", 2)}, 13);
  const auto all = published.changes(*published.cursor_after(10), 100);
  ASSERT_EQ(all->views.size(), 4u);
  EXPECT_EQ(all->views[2]->revision, 11);
  EXPECT_EQ(published.changes(*published.cursor_after(12), 100)->views.back()->revision, 13);
  EXPECT_EQ(published.cursor_after(9).status().code(), absl::StatusCode::kOutOfRange) << "before this process";
  EXPECT_EQ(published.cursor_after(14).status().code(), absl::StatusCode::kOutOfRange) << "from another store";
  EXPECT_TRUE(published.changes(*published.cursor_after(13), 100)->views.empty());
}

TEST(PublishedTest, ASlowReaderIsToldThatItLostChanges) {
  Published published(0, /*keep_changes=*/5);
  const int64_t cursor = published.snapshot().next_cursor;
  for (int i = 1; i <= 10; ++i) published.publish({view("a", 1)}, i);
  EXPECT_EQ(published.changes(cursor, 10).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(published.cursor_after(2).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(published.changes(*published.cursor_after(5), 10)->views.size(), 5u);
}

TEST(PublishedTest, ListsNewestFirstInPages) {
  Published published(0);
  for (int i = 1; i <= 5; ++i) published.publish({view("j" + std::to_string(i), i)}, i);
  const auto all = [](const JobView&) { return true; };
  const auto first = published.list(0, 2, all);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0]->record->uid, "j5");
  EXPECT_EQ(published.list(first[1]->record->order, 9, all).size(), 3u);
}

}  // namespace
}  // namespace titan::reconcile
