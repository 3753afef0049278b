// A store in a file survives kills and full disks, and detects damage.

#include "controller/store/sqlite_store.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "absl/strings/match.h"
#include "controller/store/memory_store.h"
#include "gtest/gtest.h"

namespace titan::store {
namespace {

class SqliteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "titan-store-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/titan.db";
  }
  void TearDown() override {
    store_.reset();
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
    const std::string command = "rm -rf '" + folder_ + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  void open(SqliteOptions options = {}) {
    auto opened = SqliteStore::open(path_, std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  absl::StatusOr<int64_t> commit(Mutation mutation, WhenFull when_full = WhenFull::kRefuse) {
    std::promise<absl::StatusOr<int64_t>> promise;
    store_->commit({{std::move(mutation)}, when_full}, [&](const absl::StatusOr<int64_t>& r) { promise.set_value(r); });
    return promise.get_future().get();
  }

  // Fills the disk until requests are rejected, checks that reads work and a kept transaction waits, frees space, and
  // checks that everything acknowledged is there.
  void fill_and_recover(const std::function<void()>& free_space) {
    ASSERT_TRUE(commit(put("first", "x")).ok());
    std::vector<std::string> acknowledged;
    absl::Status refused;
    for (int i = 0; i < 20000 && refused.ok(); ++i) {
      const std::string key = "k" + std::to_string(i);
      const auto result = commit(put(key, std::string(8000, 'x')));
      if (result.ok()) acknowledged.push_back(key);
      refused = result.status();
    }
    ASSERT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_EQ((*store_->get("first"))->value, "x");
    std::promise<absl::StatusOr<int64_t>> kept;
    store_->commit({{put("kept", std::string(100000, 'k'))}, WhenFull::kRetry},
                   [&](const absl::StatusOr<int64_t>& r) { kept.set_value(r); });
    EXPECT_EQ(commit(put("refused", std::string(100000, 'x'))).status().code(), absl::StatusCode::kResourceExhausted);
    std::future<absl::StatusOr<int64_t>> waiting = kept.get_future();
    EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
    free_space();
    EXPECT_TRUE(waiting.get().ok());
    EXPECT_TRUE(commit(put("after", "y")).ok());
    store_.reset();
    open();
    for (const std::string& key : acknowledged) EXPECT_TRUE(store_->get(key)->has_value()) << key;
    EXPECT_TRUE(store_->get("kept")->has_value());
    EXPECT_FALSE(store_->get("refused")->has_value());
  }

  std::string folder_, path_;
  std::unique_ptr<SqliteStore> store_;
  bool mounted_ = false;
};

TEST_F(SqliteTest, KeepsEverythingOverARestart) {
  open();
  ASSERT_TRUE(commit(put("a", "1")).ok());
  ASSERT_TRUE(commit(put("a", "2")).ok());
  const std::string id = store_->id();
  store_.reset();
  open();
  EXPECT_EQ((*store_->get("a"))->value, "2");
  EXPECT_EQ((*store_->get("a"))->revision, 2);
  EXPECT_EQ(store_->revision(), 2);
  EXPECT_EQ(store_->id(), id);
  EXPECT_EQ(*commit(put("b", "3")), 3);
}

TEST_F(SqliteTest, OneProcessAtATime) {
  open();
  EXPECT_EQ(SqliteStore::open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
}

// A process is killed with transactions in flight: acknowledged ones are there, and none is there in part.
TEST_F(SqliteTest, SurvivesAKillAtAnyMoment) {
  for (int round = 0; round < 5; ++round) {
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    const pid_t child = fork();
    if (child == 0) {
      auto opened = SqliteStore::open(path_);
      if (!opened.ok()) _exit(1);
      for (int64_t i = 0;; ++i) {
        const std::string pair = std::to_string(round) + "/" + std::to_string(i);
        (*opened)->commit({{put("a/" + pair, "1"), put("b/" + pair, "1")}, WhenFull::kRetry},
                          [i, fd = pipe_fds[1]](const absl::StatusOr<int64_t>& r) {
                            if (!r.ok() || write(fd, &i, sizeof i) != sizeof i) _exit(2);
                          });
        if (i % 20 == 0) usleep(100);
      }
    }
    close(pipe_fds[1]);
    int64_t last = -1;
    for (int n = 0; n < 100 + round * 37; ++n) ASSERT_EQ(read(pipe_fds[0], &last, sizeof last), sizeof last);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    while (read(pipe_fds[0], &last, sizeof last) == sizeof last) {
    }
    close(pipe_fds[0]);
    open();
    for (int64_t i = 0; i <= last; ++i) {
      ASSERT_TRUE(store_->get("a/" + std::to_string(round) + "/" + std::to_string(i))->has_value())
          << i << " of " << last;
    }
    EXPECT_EQ(scan_all(*store_, "a/")->size(), scan_all(*store_, "b/")->size());
    store_.reset();
  }
}

TEST_F(SqliteTest, FullDiskRefusesLosesNothingAndRecovers) {
  if (mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=3m") != 0) GTEST_SKIP() << "cannot mount a tmpfs here";
  mounted_ = true;
  open();
  fill_and_recover([&] { ASSERT_EQ(mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0); });
}

// Fills the file up to a number of pages instead of a disk, which needs no privileges.
TEST_F(SqliteTest, PageLimitRefusesLosesNothingAndRecovers) {
  SqliteOptions options;
  options.max_pages = 300;
  open(options);
  fill_and_recover([&] { store_->set_max_pages(0); });
}

// A flipped byte is detected and never served.
TEST_F(SqliteTest, FlippedByteIsDetected) {
  open();
  const std::string marker = "find-this-value-in-the-file";
  ASSERT_TRUE(commit(put("a", marker)).ok());
  ASSERT_TRUE(commit(put("b", "whole")).ok());
  store_.reset();
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t at = content.find(marker);
  ASSERT_NE(at, std::string::npos);
  file.clear();
  file.seekp(static_cast<std::streamoff>(at + 3));
  file.put('#');
  file.close();
  open();
  const auto damaged = store_->get("a");
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(damaged.status().message(), "'a'")) << damaged.status();
  EXPECT_EQ((*store_->get("b"))->value, "whole");
  EXPECT_EQ(store_->scan("", "", 10)->size(), 1u);
}

TEST_F(SqliteTest, ForeignFileIsRefused) {
  std::ofstream(path_) << std::string(5000, 'z');
  EXPECT_EQ(SqliteStore::open(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SqliteTest, ATornLogTailIsCutOff) {
  open();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(commit(put("k" + std::to_string(i), "v")).ok());
  // Copies the files as a crash would leave them, with the log cut at many places: each copy has an intact prefix of
  // the transactions.
  std::ifstream wal_file(path_ + "-wal", std::ios::binary);
  const std::string wal((std::istreambuf_iterator<char>(wal_file)), std::istreambuf_iterator<char>());
  std::ifstream db_file(path_, std::ios::binary);
  const std::string db((std::istreambuf_iterator<char>(db_file)), std::istreambuf_iterator<char>());
  store_.reset();
  const std::string copy = folder_ + "/copy.db";
  size_t previous = 0;
  for (size_t size = 0; size <= wal.size(); size += wal.size() / 40) {
    for (const char* end : {"", "-wal", "-shm"}) unlink((copy + end).c_str());
    std::ofstream(copy, std::ios::binary) << db;
    std::ofstream(copy + "-wal", std::ios::binary) << wal.substr(0, size);
    auto opened = SqliteStore::open(copy);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto records = scan_all(**opened, "k");
    ASSERT_TRUE(records.ok()) << records.status();
    EXPECT_GE(records->size(), previous);
    EXPECT_EQ(static_cast<int64_t>(records->size()), (*opened)->revision());
    previous = records->size();
  }
  EXPECT_GE(previous, 49u);
}

}  // namespace
}  // namespace titan::store
