#include "controller/core/jobs.h"

#include <memory>

#include "gtest/gtest.h"

namespace titan::core {
namespace {

LiveJob named(const std::string& uid, const std::string& name) {
  LiveJob job;
  job.record.uid = uid;
  job.record.name = name;
  return job;
}

JobViewPtr view_of(const LiveJob& job) {
  auto view = std::make_shared<JobView>();
  view->record = std::make_shared<const job::JobRecord>(job.record);
  return view;
}

TEST(JobsTest, ANameIsTakenUntilItsJobIsDeleted) {
  Jobs jobs;
  LiveJob job = named("u", "a");
  jobs.register_new(job.record);
  EXPECT_TRUE(jobs.has_name("a"));
  jobs.begin_creation({job, {7}});
  ASSERT_NE(jobs.find_creation("u"), nullptr);
  EXPECT_EQ(jobs.find("u"), nullptr);
  Creation created = jobs.end_creation("u");
  EXPECT_EQ(created.waiting, std::vector<RequestId>{7});
  EXPECT_EQ(jobs.find_creation("u"), nullptr);
  LiveJob& live = jobs.add(std::move(created.job));
  EXPECT_EQ(jobs.find("u"), &live);
  EXPECT_EQ(jobs.find_over("u"), nullptr);
  const JobViewPtr last = view_of(live);
  jobs.end("u", last);
  EXPECT_EQ(jobs.find("u"), nullptr);
  EXPECT_EQ(jobs.find_over("u"), last);
  EXPECT_TRUE(jobs.has_name("a"));
  jobs.remove(*last);
  EXPECT_EQ(jobs.find_over("u"), nullptr);
  EXPECT_FALSE(jobs.has_name("a"));
}

// Jobs created before this controller started have lower orders than those that it creates.
TEST(JobsTest, OrdersContinueAfterALoad) {
  Jobs jobs;
  LiveJob old = named("old", "a");
  old.record.order = 41;
  jobs.restore(old.record);
  LiveJob first = named("first", "b"), second = named("second", "c");
  jobs.register_new(first.record);
  jobs.register_new(second.record);
  EXPECT_EQ(first.record.order, 42);
  EXPECT_EQ(second.record.order, 43);
  EXPECT_TRUE(jobs.has_name("a"));
}

TEST(JobsTest, ANameIsFreeAgainWhenTheCreationIsRefused) {
  Jobs jobs;
  LiveJob job = named("u", "a");
  jobs.register_new(job.record);
  jobs.unregister("a");
  EXPECT_FALSE(jobs.has_name("a"));
}

}  // namespace
}  // namespace titan::core
