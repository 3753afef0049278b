#include "worker/rank/trace/spans.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

namespace titan::trace {
namespace {

std::multiset<std::string> names(const std::vector<ThreadSpan>& works) {
  std::multiset<std::string> names;
  for (const ThreadSpan& work : works) names.insert(work.name);
  return names;
}

Transfer transfer(int64_t begin_ns) { return {.operation = "all_gather", .axis = "fsdp", .begin_ns = begin_ns}; }

// Spans that end before a recording, or begin after it, are left out.
TEST(SpansTest, KeepsSpansDuringTheRecording) {
  SpanRecorder spans;
  { const ThreadSpanScope early(&spans, "loader", "early"); }
  spans.add(transfer(now_ns()));
  const int64_t before = now_ns();
  spans.start();
  EXPECT_TRUE(spans.recording());
  spans.add(transfer(before - 1));  // Issued before: left out.
  spans.add(transfer(now_ns()));
  { const ThreadSpanScope work(&spans, "loader", "work"); }
  const RecordedSpans recorded = spans.stop();
  EXPECT_FALSE(spans.recording());
  { const ThreadSpanScope late(&spans, "loader", "late"); }
  EXPECT_EQ(names(recorded.works), std::multiset<std::string>{"work"});
  EXPECT_EQ(recorded.transfers.size(), 1U);
  const RecordedSpans nothing = spans.stop();
  EXPECT_TRUE(nothing.works.empty() && nothing.transfers.empty());
}

// A save that lasts longer than the recording fills it from end to end, and the next one too.
TEST(SpansTest, OngoingWorkIsClippedToTheRecording) {
  SpanRecorder spans;
  const ThreadSpanScope outer(&spans, "writer", "save");
  for (int round = 0; round < 2; ++round) {
    spans.start();
    const RecordedSpans recorded = spans.stop();
    ASSERT_EQ(recorded.works.size(), 1U);
    EXPECT_EQ(recorded.works[0].begin_ns, recorded.begin_ns);
    EXPECT_EQ(recorded.works[0].end_ns, recorded.end_ns);
  }
}

TEST(SpansTest, WorksWithoutARecorder) { const ThreadSpanScope work(nullptr, "loader", "work"); }

// Recordings may start and stop at any point of the threads' work: every span stays whole, and TSan finds no race.
TEST(SpansTest, StopsWhileThreadsAreWorking) {
  constexpr int kThreads = 3;
  SpanRecorder spans;
  std::atomic<bool> over = false;
  std::atomic<int64_t> done = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (!over) {
        {
          const ThreadSpanScope outer(&spans, "writer", "outer");
          const ThreadSpanScope inner(&spans, "writer", "inner");
          if (spans.recording()) spans.add(transfer(now_ns()));
        }
        ++done;
      }
    });
  }
  for (int round = 0; round < 50; ++round) {
    spans.start();
    // Each thread may still have to count work from before the recording; one more count proves work within it.
    for (const int64_t before = done; done <= before + kThreads;) std::this_thread::yield();
    const RecordedSpans recorded = spans.stop();
    EXPECT_FALSE(recorded.works.empty());
    std::set<int64_t> ids;
    for (const ThreadSpan& work : recorded.works) {
      EXPECT_STREQ(work.thread, "writer");
      EXPECT_LE(recorded.begin_ns, work.begin_ns);
      EXPECT_LE(work.begin_ns, work.end_ns);
      EXPECT_LE(work.end_ns, recorded.end_ns);
      ids.insert(work.thread_id);
    }
    EXPECT_FALSE(ids.contains(recorded.thread_id));
  }
  over = true;
}

}  // namespace
}  // namespace titan::trace
