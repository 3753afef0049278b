// The queue in front of every durable store, with a disk that the test controls.

#include "controller/store/writer.h"

#include <atomic>
#include <future>

#include "absl/status/status.h"
#include "controller/store/sqlite_store.h"
#include "gtest/gtest.h"

namespace titan::store {
namespace {

class WriterTest : public ::testing::Test {
 protected:
  void start(WriterOptions options) {
    writer_ = std::make_unique<Writer>(
        options, Writer::Backend{[this](const Writer::Group& group, auto& results) { return write(group, results); },
                                 {},
                                 [this](const absl::Status&) { ++failures_; }});
    writer_->start();
  }

  absl::Status write(const Writer::Group& group, std::vector<absl::StatusOr<int64_t>>& results) {
    ++writes_;
    largest_ = std::max<int>(largest_, static_cast<int>(group.size()));
    started_ = true;
    held_.wait(true);
    absl::Status status = full_ ? absl::ResourceExhaustedError("full") : failure_;
    if (status.ok()) {
      for (size_t i = 0; i < group.size(); ++i) results.emplace_back(++revision_);
    }
    ++written_;
    return status;
  }

  std::future<absl::StatusOr<int64_t>> commit(WhenFull when_full, size_t bytes = 1) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<int64_t>>>();
    writer_->commit({{put("k", std::string(bytes, 'x'))}, when_full},
                    [promise](const absl::StatusOr<int64_t>& result) { promise->set_value(result); });
    return promise->get_future();
  }
  void hold() { held_ = true; }
  void release() {
    held_ = false;
    held_.notify_all();
  }
  void wait_until_writing() const {
    while (!started_) std::this_thread::yield();
  }

  std::atomic<bool> held_{false}, started_{false}, full_{false};
  std::atomic<int> writes_{0}, written_{0}, largest_{0},
      failures_{0};       // Writes begun and done, the largest group, and failures.
  absl::Status failure_;  // Failure of the next write; set only while no write runs.
  int64_t revision_ = 0;
  std::unique_ptr<Writer> writer_;
};

// More than a group of transactions that must not be lost waits for a full disk, and client requests follow: each gets
// its answer while the disk is full, and no write is retried for them.
TEST_F(WriterTest, ClientsAreAnsweredDespiteAQueueOnAFullDisk) {
  WriterOptions options;
  options.full_retry = absl::Hours(1);
  options.group_limit = 100;
  hold();
  start(options);
  std::vector<std::future<absl::StatusOr<int64_t>>> kept;
  full_ = true;
  for (int i = 0; i < 1000; ++i) kept.push_back(commit(WhenFull::kRetry));
  std::vector<std::future<absl::StatusOr<int64_t>>> clients;
  for (int i = 0; i < 50; ++i) clients.push_back(commit(WhenFull::kRefuse));
  release();
  for (int i = 0; i < 50; ++i) clients.push_back(commit(WhenFull::kRefuse));
  for (auto& client : clients) EXPECT_EQ(client.get().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(writes_, 1);
  EXPECT_EQ(writer_->queued().transactions, 1000);
  for (auto& waiting : kept) EXPECT_EQ(waiting.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  full_ = false;
  writer_->close();  // Tries once more.
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(*kept[i].get(), static_cast<int64_t>(i) + 1);
}

// A slow callback of one group does not delay the next write; callbacks still run in order.
TEST_F(WriterTest, NextGroupDoesNotWaitForCallbacks) {
  start({});
  std::promise<void> proceed;
  std::vector<int64_t> received;
  std::mutex mutex;
  const auto listen = [&](const absl::StatusOr<int64_t>& result) {
    const std::lock_guard lock(mutex);
    received.push_back(*result);
  };
  writer_->commit({{put("k", "slow")}, WhenFull::kRetry}, [&](const absl::StatusOr<int64_t>& result) {
    proceed.get_future().wait();
    listen(result);
  });
  while (writes_ < 1) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) {
    writer_->commit({{put("k", "next")}, WhenFull::kRetry}, listen);
    while (writes_ < 2 + i) std::this_thread::yield();
  }
  {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(received.empty());
  }
  proceed.set_value();
  writer_->close();
  EXPECT_EQ(received, (std::vector<int64_t>{1, 2, 3, 4}));
}

// Acknowledged results are delivered before unknown ones.
TEST_F(WriterTest, AnswersArriveBeforeTheFailure) {
  start({});
  std::promise<void> proceed;
  std::atomic<bool> answered = false;
  writer_->commit({{put("k", "slow")}, WhenFull::kRetry}, [&](const absl::StatusOr<int64_t>& result) {
    proceed.get_future().wait();
    EXPECT_TRUE(result.ok());
    answered = true;
  });
  while (written_ < 1) std::this_thread::yield();
  failure_ = absl::InternalError("fsync");
  auto lost = commit(WhenFull::kRetry);
  while (writes_ < 2) std::this_thread::yield();
  EXPECT_EQ(lost.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  proceed.set_value();
  EXPECT_EQ(lost.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(answered);
}

TEST_F(WriterTest, RecoversByItself) {
  WriterOptions options;
  options.full_retry = absl::Milliseconds(1);
  start(options);
  full_ = true;
  std::vector<std::future<absl::StatusOr<int64_t>>> kept;
  for (int i = 0; i < 100; ++i) kept.push_back(commit(WhenFull::kRetry));
  while (writes_ < 3) std::this_thread::yield();
  full_ = false;
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(*kept[i].get(), static_cast<int64_t>(i) + 1);
  EXPECT_TRUE(commit(WhenFull::kRefuse).get().ok());
}

TEST_F(WriterTest, UnwrittenTransactionsAreUnknownAtClose) {
  WriterOptions options;
  options.full_retry = absl::Hours(1);
  start(options);
  full_ = true;
  auto kept = commit(WhenFull::kRetry);
  writer_->close();
  EXPECT_EQ(kept.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(commit(WhenFull::kRetry).get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(failures_, 0);  // No failure is reported: the transaction is sent again after a restart.
}

// During a slow write, clients beyond the queue's limits get an error at once; transactions that must not be lost wait.
TEST_F(WriterTest, TheQueueIsBoundedInTransactionsAndBytes) {
  WriterOptions options;
  options.queue_limit = 10;
  options.queue_bytes = 1000;
  hold();
  start(options);
  std::vector<std::future<absl::StatusOr<int64_t>>> taken;
  taken.push_back(commit(WhenFull::kRefuse));
  wait_until_writing();
  for (int i = 0; i < 10; ++i) taken.push_back(commit(WhenFull::kRefuse));
  EXPECT_EQ(commit(WhenFull::kRefuse).get().status().code(), absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 10; ++i) taken.push_back(commit(WhenFull::kRetry));
  EXPECT_EQ(writer_->queued().transactions, 20);
  release();
  for (auto& result : taken) EXPECT_TRUE(result.get().ok());
  hold();
  started_ = false;
  taken.clear();
  taken.push_back(commit(WhenFull::kRefuse));
  wait_until_writing();
  taken.push_back(commit(WhenFull::kRefuse, 2000));  // A single transaction may exceed the limit.
  EXPECT_EQ(commit(WhenFull::kRefuse).get().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(writer_->queued().bytes, 2000);
  release();
  for (auto& result : taken) EXPECT_TRUE(result.get().ok());
  EXPECT_EQ(writer_->queued().bytes, 0);
}

// After an error nothing is retried: every caller gets "unknown", once and in order.
TEST_F(WriterTest, ErrorEndsTheWriter) {
  hold();
  start({});
  failure_ = absl::InternalError("fsync");
  std::vector<std::future<absl::StatusOr<int64_t>>> all;
  for (int i = 0; i < 5; ++i) all.push_back(commit(WhenFull::kRetry));
  release();
  for (auto& result : all) EXPECT_EQ(result.get().status().code(), absl::StatusCode::kUnavailable);
  writer_->close();
  EXPECT_EQ(writes_, 1);
  EXPECT_EQ(failures_, 1);
  EXPECT_FALSE(writer_->post([] {}));
}

// The same as the first test, with a real file of limited size.
TEST(FullFileTest, ClientsAreAnsweredDespiteALongQueue) {
  std::string folder = ::testing::TempDir() + "titan-full-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    SqliteOptions options;
    options.max_pages = 60;
    const auto store = *SqliteStore::open(folder + "/titan.db", options);
    std::vector<std::future<absl::StatusOr<int64_t>>> kept, clients;
    const auto commit = [&](WhenFull when_full, int i, size_t bytes) {
      auto promise = std::make_shared<std::promise<absl::StatusOr<int64_t>>>();
      store->commit({{put("k" + std::to_string(i), std::string(bytes, 'x'))}, when_full},
                    [promise](const absl::StatusOr<int64_t>& result) { promise->set_value(result); });
      return promise->get_future();
    };
    for (int i = 0; i < 2000; ++i) kept.push_back(commit(WhenFull::kRetry, i, 1000));
    for (int i = 0; i < 10; ++i) clients.push_back(commit(WhenFull::kRefuse, 5000 + i, 100'000));
    for (auto& client : clients) EXPECT_EQ(client.get().status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(kept.back().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    EXPECT_TRUE(store->get("k0").ok());
    store->set_max_pages(0);
    for (auto& waiting : kept) EXPECT_TRUE(waiting.get().ok());
  }
  EXPECT_EQ(std::system(("rm -r " + folder).c_str()), 0);
}

}  // namespace
}  // namespace titan::store
