// Guarantees for watchers while many clients write.

#include <map>
#include <set>
#include <thread>

#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

constexpr int kWriters = 8;

class WatchTest : public ServiceCase {
 protected:
  using Reader = std::unique_ptr<grpc::ClientReader<v1::JobChange>>;

  Reader watch(grpc::ClientContext& context, const std::string& name = "", int64_t revision = 0) {
    rpc::set_deadline(context, absl::Seconds(60));
    v1::WatchJobsRequest request;
    request.set_name(name);
    request.set_revision(revision);
    return jobs_->WatchJobs(&context, request);
  }
  static std::string name_of(int writer, int i) { return absl::StrCat("w", writer, "-", i); }

  // Each of eight writers creates `each` jobs and cancels every other one.
  void write(int each) {
    std::vector<std::thread> writers;
    for (int writer = 0; writer < kWriters; ++writer) {
      writers.emplace_back([this, writer, each] {
        for (int i = 0; i < each; ++i) {
          v1::Job created;
          EXPECT_TRUE(create(job(name_of(writer, i)), &created).ok());
          if (i % 2 == 0) {
            EXPECT_TRUE(cancel(name_of(writer, i)).ok());
          }
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
  }
  // Creates the last job, so that a watcher knows when it has seen everything.
  void write_last() {
    v1::Job created;
    ASSERT_TRUE(create(job("last"), &created).ok());
  }

  // The newest state of every job that a reader has seen.
  struct Seen {
    std::map<std::string, v1::Job> jobs;
    int64_t changes = 0;
    bool in_order = true;
    int cancelled = 0;
    void take(const v1::JobChange& change) {
      if (!change.has_job()) return;
      ++changes;
      v1::Job& present = jobs[change.job().name()];
      in_order = in_order && change.job().revision() >= present.revision();
      cancelled += change.job().state() == v1::Job::CANCELLED && present.state() != v1::Job::CANCELLED ? 1 : 0;
      present = change.job();
    }
  };
  static Seen read_to_the_end(grpc::ClientReader<v1::JobChange>& reader, int cancelled) {
    Seen seen;
    v1::JobChange change;
    while ((seen.cancelled < cancelled || seen.jobs.count("projects/default/jobs/last") == 0) && reader.Read(&change)) {
      seen.take(change);
    }
    return seen;
  }
};

TEST_F(WatchTest, EverythingIsSeenInOrderUnderEightWriters) {
  constexpr int kEach = 40;
  grpc::ClientContext context, own_context;
  const Reader reader = watch(context);
  v1::JobChange first;
  ASSERT_TRUE(reader->Read(&first));
  EXPECT_EQ(first.kind(), v1::JobChange::SNAPSHOT_END);
  v1::Job created;
  ASSERT_TRUE(create(job("own"), &created).ok());
  const Reader own = watch(own_context, "projects/default/jobs/own");

  std::thread writing([this] {
    write(kEach);
    write_last();
  });
  const Seen seen = read_to_the_end(*reader, kWriters * kEach / 2);
  writing.join();
  EXPECT_TRUE(seen.in_order);
  EXPECT_EQ(seen.jobs.size(), static_cast<size_t>(kWriters * kEach + 2));
  EXPECT_EQ(seen.cancelled, kWriters * kEach / 2);

  // A watcher of one job gets no changes of other jobs.
  ASSERT_TRUE(cancel("own").ok());
  v1::JobChange change;
  std::set<std::string> seen_names;
  do {
    ASSERT_TRUE(own->Read(&change));
    if (change.has_job()) seen_names.insert(change.job().name());
  } while (change.job().state() != v1::Job::CANCELLED);
  EXPECT_EQ(seen_names, std::set<std::string>{"projects/default/jobs/own"});
  context.TryCancel();
  own_context.TryCancel();
}

// The snapshot arrives in pages while its jobs change: in the end the reader has the current state.
TEST_F(WatchTest, SnapshotOfChangingJobsEndsUpCurrent) {
  constexpr int kEach = 40;
  write(kEach);
  grpc::ClientContext context;
  const Reader reader = watch(context);
  std::thread writing([this] {
    std::vector<std::thread> writers;
    for (int writer = 0; writer < kWriters; ++writer) {
      writers.emplace_back([this, writer] {
        for (int i = 1; i < kEach; i += 2) EXPECT_TRUE(cancel(name_of(writer, i)).ok());
        v1::DeleteJobRequest gone;
        gone.set_name(absl::StrCat("projects/default/jobs/", name_of(writer, 0)));
        v1::Job deleted;
        EXPECT_TRUE(call(&v1::JobService::Stub::DeleteJob, gone, &deleted).ok());
      });
    }
    for (std::thread& writer : writers) writer.join();
    write_last();
  });
  Seen seen;
  int ends = 0;
  v1::JobChange change;
  while (seen.jobs.count("projects/default/jobs/last") == 0 && reader->Read(&change)) {
    ends += change.kind() == v1::JobChange::SNAPSHOT_END ? 1 : 0;
    EXPECT_TRUE(ends == 1 || change.kind() == v1::JobChange::SNAPSHOT);
    seen.take(change);
    if (change.kind() == v1::JobChange::DELETED) seen.jobs.erase(change.job().name());
  }
  writing.join();
  EXPECT_EQ(ends, 1);
  EXPECT_TRUE(seen.in_order);
  EXPECT_EQ(seen.jobs.size(), static_cast<size_t>(kWriters * (kEach - 1) + 1));
  for (const auto& [name, job] : seen.jobs) {
    EXPECT_EQ(job.state(), name == "projects/default/jobs/last" ? v1::Job::QUEUED : v1::Job::CANCELLED) << name;
  }
  context.TryCancel();
}

// Readers that do not read delay neither writers nor other readers, and get everything when they resume.
TEST_F(WatchTest, StuckReadersDelayNobody) {
  constexpr int kEach = 40, kStuck = 20;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<Reader> stuck;
  for (int i = 0; i < kStuck; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    stuck.push_back(watch(*contexts.back()));
    v1::JobChange first;
    ASSERT_TRUE(stuck.back()->Read(&first));
  }
  grpc::ClientContext context;
  const Reader reader = watch(context);
  std::thread writing([this] {
    write(kEach);
    write_last();
  });
  const Seen seen = read_to_the_end(*reader, kWriters * kEach / 2);
  writing.join();
  EXPECT_EQ(seen.jobs.size(), static_cast<size_t>(kWriters * kEach + 1));
  for (const Reader& late : stuck) {
    const Seen all = read_to_the_end(*late, kWriters * kEach / 2);
    EXPECT_TRUE(all.in_order);
    EXPECT_EQ(all.jobs.size(), seen.jobs.size());
  }
  for (const auto& one : contexts) one->TryCancel();
  context.TryCancel();
}

// A reader that resumes from a revision sees each later change once; revisions of earlier processes are not kept.
TEST_F(WatchTest, ReaderResumesFromARevision) {
  v1::Job first, second;
  ASSERT_TRUE(create(job("a"), &first).ok());
  ASSERT_TRUE(create(job("b"), &second).ok());
  grpc::ClientContext context;
  const Reader reader = watch(context, "", first.revision());
  v1::JobChange change;
  ASSERT_TRUE(reader->Read(&change));
  EXPECT_EQ(change.kind(), v1::JobChange::CHANGED);
  EXPECT_EQ(change.job().uid(), second.uid());
  context.TryCancel();
  stop();
  start("127.0.0.1:0");
  grpc::ClientContext again;
  const Reader late = watch(again, "", first.revision());
  EXPECT_FALSE(late->Read(&change));
  EXPECT_EQ(rpc::from_grpc(late->Finish()).code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace titan::api
