// All events arrive in the order in which they happened, whatever their keys and their number.

#include "absl/strings/str_cat.h"
#include "controller/api/event_stream.h"
#include "controller/store/memory_store.h"
#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using ::testing::ElementsAre;

std::string key_of(int transaction, int subject) {
  return absl::StrCat("event/", (transaction * 7 + subject * 3) % 11, "/", transaction, "-", subject);
}

TEST(OldestPlacesTest, PagesFollowTheLogAndLoseNothing) {
  store::MemoryStore store;
  std::vector<LogPosition> all;
  for (int i = 1; i <= 40; ++i) {  // Each transaction has one to three events, and records of other kinds.
    store::Transaction transaction;
    transaction.mutations.push_back(store::put(absl::StrCat("job/", i), "{}"));
    for (int j = 0; j <= i % 3; ++j) {
      transaction.mutations.push_back(store::put(key_of(i, j), "{}"));
      all.emplace_back(i, key_of(i, j));
    }
    store.commit(std::move(transaction), nullptr);
  }
  store.run_pending();
  std::sort(all.begin(), all.end());
  for (const size_t limit : {size_t{1}, size_t{4}, all.size(), all.size() + 1}) {
    std::vector<LogPosition> seen;
    LogPosition last;
    while (true) {
      const absl::StatusOr<std::deque<LogPosition>> page =
          oldest_positions(store, "event/", last, store.revision(), limit);
      ASSERT_TRUE(page.ok()) << page.status();
      ASSERT_LE(page->size(), limit);
      seen.insert(seen.end(), page->begin(), page->end());
      if (page->size() < limit) break;
      last = seen.back();
    }
    EXPECT_EQ(seen, all) << limit;
  }
  // Reads only positions between two revisions.
  const auto some = oldest_positions(store, "event/", {10, "\x7f"}, 12, 100);
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->size(), 3u + 1u) << "revision 11 has three events and revision 12 has one";
  EXPECT_EQ(some->front().first, 11);
  EXPECT_EQ(some->back().first, 12);
}

class EventsTest : public ServiceCase {
 protected:
  // Returns job and reason of each event.
  std::vector<std::string> events_after(int64_t revision, int64_t* last = nullptr) {
    v1::ListEventsRequest request;
    request.set_revision(revision);
    return events_of(request, last);
  }
  std::vector<std::string> events_of(const v1::ListEventsRequest& request, int64_t* last = nullptr) {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    auto stream = jobs_->ListEvents(&context, request);
    v1::Event event;
    std::vector<std::string> events;
    while (stream->Read(&event)) {
      events.push_back(absl::StrCat(event.job().substr(event.job().rfind('/') + 1), " ", event.reason()));
      if (last != nullptr) *last = event.revision();
    }
    EXPECT_TRUE(stream->Finish().ok());
    return events;
  }
};

TEST_F(EventsTest, EventsOfAllJobsFollowTheLogOrder) {
  v1::Job created;
  ASSERT_TRUE(create(job("b"), &created).ok());
  ASSERT_TRUE(create(job("a"), &created).ok());
  int64_t seen = 0;
  EXPECT_THAT(events_after(0, &seen), ElementsAre("b JobQueued", "a JobQueued"));
  ASSERT_TRUE(cancel("b").ok());
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_THAT(events_after(0), ElementsAre("b JobQueued", "a JobQueued", "b CancelRequested", "b JobCancelled",
                                           "a CancelRequested", "a JobCancelled"));
  EXPECT_THAT(events_after(seen),
              ElementsAre("b CancelRequested", "b JobCancelled", "a CancelRequested", "a JobCancelled"));
}

// A restored store does not have this revision yet: a reader that resumes there would never get an event.
TEST_F(EventsTest, RevisionsBeyondTheStoreAreOutOfRange) {
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  const int64_t newest = store_->revision();
  for (const char* job_id : {"", "a"}) {
    for (const bool follow : {false, true}) {
      v1::ListEventsRequest request;
      request.set_job(job_id);
      request.set_follow(follow);
      request.set_revision(newest + 1);
      grpc::ClientContext context;
      rpc::set_deadline(context, absl::Seconds(20));
      auto stream = jobs_->ListEvents(&context, request);
      v1::Event event;
      EXPECT_FALSE(stream->Read(&event));
      const absl::Status status = rpc::from_grpc(stream->Finish());
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
      EXPECT_EQ(rpc::reason(status), "REVISION_UNKNOWN");
      EXPECT_THAT(rpc::metadata(status), ::testing::Contains(::testing::Pair("revision", absl::StrCat(newest))));
    }
  }
  EXPECT_THAT(events_after(newest), ElementsAre());
}

// A damaged event is set aside like any other damaged record, and the other events are still delivered.
TEST_F(EventsTest, DamagedEventsAreQuarantined) {
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  const auto damage = [&](int64_t number, const std::string& value) {
    std::string key = core::event_key(core::job_events_prefix(created.uid()), number);
    put_record(key, value);
    return key;
  };
  const std::string first = damage(900, "no JSON");
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_THAT(events_after(0), ElementsAre("a JobQueued", "a CancelRequested", "a JobCancelled"));
  const std::string second = damage(901, "{\"time_ns\":\"soon\"}");
  v1::ListEventsRequest of_job;
  of_job.set_job("a");
  EXPECT_THAT(events_of(of_job), ElementsAre("a JobQueued", "a CancelRequested", "a JobCancelled"));
  std::vector<std::string> aside;
  for (const store::Quarantined& record : store_->quarantined()) aside.push_back(record.key);
  EXPECT_THAT(aside, ElementsAre(first, second));
}

}  // namespace
}  // namespace titan::api
