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

TEST(PublishedTest, WatchFromARevisionSeesLaterChanges) {
  Published published(10, {});
  published.publish({view("a", 1)}, 11);
  published.publish({view("b", 2)}, 12);
  published.publish({view("a", 1)}, 0);  // A reason changed: the view gets no new revision.
  published.publish({view("b", 2)}, 13);
  const auto all = published.changes(*published.cursor_after(10), 100);
  ASSERT_EQ(all->views.size(), 4u);
  EXPECT_EQ(all->views[2]->revision, 11);
  EXPECT_EQ(published.changes(*published.cursor_after(12), 100)->views.back()->revision, 13);
  EXPECT_EQ(published.cursor_after(9).status().code(), absl::StatusCode::kOutOfRange) << "before this process";
  EXPECT_EQ(published.cursor_after(14).status().code(), absl::StatusCode::kOutOfRange) << "from another store";
  EXPECT_TRUE(published.changes(*published.cursor_after(13), 100)->views.empty());
}

TEST(PublishedTest, SlowReaderThatLostChangesGetsAnError) {
  Published published(0, {.changes = 5});
  const int64_t cursor = published.end();
  for (int i = 1; i <= 10; ++i) published.publish({view("a", 1)}, i);
  EXPECT_EQ(published.changes(cursor, 10).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(published.cursor_after(2).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(published.changes(*published.cursor_after(5), 10)->views.size(), 5u);
}

// A reader of one job gets only its changes, and loses none because of other jobs.
TEST(PublishedTest, ChangesOfOneJobOutliveThoseOfOthers) {
  Published published(0, {.changes = 5});
  published.publish({view("a", 1)}, 1);
  const int64_t cursor = published.end();
  const std::string name = view("a", 1)->record->name;
  for (int i = 2; i <= 20; ++i) published.publish({view("b", 2)}, i);
  EXPECT_TRUE(published.changes_of(name, cursor, 10)->views.empty());
  EXPECT_EQ(published.changes_of(name, cursor, 10)->revision, 20);
  for (int i = 21; i <= 23; ++i) published.publish({view("a", 1)}, i);
  const auto first = published.changes_of(name, cursor, 2);
  ASSERT_EQ(first->views.size(), 2u);
  EXPECT_EQ(first->views[0]->revision, 21);
  EXPECT_EQ(first->revision, 22);
  const auto rest = published.changes_of(name, first->next_cursor, 2);
  ASSERT_EQ(rest->views.size(), 1u);
  EXPECT_EQ(rest->views[0]->revision, 23);
  EXPECT_TRUE(published.changes_of(name, rest->next_cursor, 2)->views.empty());
  for (int i = 24; i <= 30; ++i) published.publish({view("b", 2)}, i);
  EXPECT_EQ(published.changes_of(name, cursor, 10).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(published.changes_of(name, rest->next_cursor, 10).ok());
}

TEST(PublishedTest, DeletionIsSeenOrOutOfRange) {
  Published published(0, {.changes = 3});
  const std::string name = view("a", 1)->record->name;
  published.publish({view("a", 1)}, 1);
  const int64_t cursor = published.end();
  published.erase("a", 2);
  const auto last = published.changes_of(name, cursor, 10);
  ASSERT_EQ(last->views.size(), 1u);
  EXPECT_TRUE(last->views[0]->deleted);
  for (int i = 3; i <= 9; ++i) published.publish({view("b", 2)}, i);
  EXPECT_EQ(published.changes_of(name, cursor, 10).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(PublishedTest, ChangesOfLargeJobsAreEvictedSooner) {
  auto attempt = std::make_shared<job::AttemptRecord>();
  attempt->placements.resize(1000);
  auto large = std::make_shared<JobView>(*view("a", 1));
  large->attempts = {attempt};
  Published published(0, {.bytes = 1 << 20});
  for (int i = 1; i <= 100; ++i) published.publish({large}, i);
  const auto all = published.changes(*published.cursor_after(97), 100);
  EXPECT_EQ(all->views.size(), 3u);
  EXPECT_EQ(published.cursor_after(50).status().code(), absl::StatusCode::kOutOfRange);
}

// The bytes that are sent for a view are made once.
TEST(PublishedTest, BytesAreShared) {
  Published published(0, {});
  published.publish({view("a", 1)}, 1);
  const PublishedViewPtr shown = published.changes(0, 1)->views[0];
  int made = 0;
  const auto make = [&](const JobView& shown_view) {
    ++made;
    return shown_view.record->uid;
  };
  EXPECT_EQ(shown->bytes(make), "a");
  EXPECT_EQ(published.look(shown->record->name).views[0]->bytes(make), "a");
  EXPECT_EQ(made, 1);
}

TEST(PublishedTest, ListsNewestFirstInPages) {
  Published published(0, {});
  for (int i = 1; i <= 5; ++i) published.publish({view("j" + std::to_string(i), i)}, i);
  const auto all = [](const JobView&) { return true; };
  const auto first = published.list(0, 2, all);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0]->record->uid, "j5");
  EXPECT_EQ(published.list(first[1]->record->order, 9, all).size(), 3u);
}

}  // namespace
}  // namespace titan::reconcile
