#include "common/storage/fence.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "common/storage/faulty_files.h"

namespace titan::storage {
namespace {

class FenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ = join_path(::testing::TempDir(), "fence." + std::to_string(::getpid()) + "." +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { posix_files().remove_folder(dump_).IgnoreError(); }

  // Whether (uid, attempt) may publish now.
  bool may_publish(const std::string& uid, int attempt) {
    bool ran = false;
    const absl::Status status = Fence(dump_).publish(uid, attempt, [&] { return ran = true, absl::OkStatus(); });
    EXPECT_EQ(status.ok(), ran) << status;
    EXPECT_TRUE(status.ok() || is_fenced(status)) << status;
    return ran;
  }

  std::string dump_;
};

TEST_F(FenceTest, OnlyTheHighestAttemptPublishes) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.raise("job", 1).ok());
  EXPECT_TRUE(may_publish("job", 1));
  EXPECT_FALSE(may_publish("job", 2)) << "an attempt publishes only after it raised the fence";
  ASSERT_TRUE(fence.raise("job", 3).ok());
  EXPECT_FALSE(may_publish("job", 1));
  EXPECT_TRUE(may_publish("job", 3));
  EXPECT_TRUE(fence.raise("job", 3).ok()) << "raising again is harmless";
  EXPECT_TRUE(is_fenced(fence.raise("job", 2)));
  EXPECT_EQ(fence.holder()->attempt, 3);
}

// A new job takes an old folder over at any number; what is left of the old job cannot take it back.
TEST_F(FenceTest, ANewJobTakesOverForGood) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.raise("old", 7).ok());
  ASSERT_TRUE(fence.raise("new", 1).ok());
  EXPECT_TRUE(may_publish("new", 1));
  EXPECT_FALSE(may_publish("old", 7));
  EXPECT_TRUE(is_fenced(fence.raise("old", 7)));
  ASSERT_TRUE(fence.raise("old", 8).ok()) << "a person started the old job again";
  EXPECT_FALSE(may_publish("new", 1));
  EXPECT_TRUE(is_fenced(fence.raise("new", 1)));
}

TEST_F(FenceTest, AnUnreadableFenceIsAnErrorThatSaysWhatToDo) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.raise("job", 1).ok());
  for (const char* text : {"", "{", "[]", "{\"job_uid\":1}", "{\"job_uid\":\"job\",\"attempt\":\"1\"}"}) {
    ASSERT_TRUE(atomic_write(posix_files(), join_path(dump_, "fence.json"), text).ok());
    const absl::Status status = fence.publish("job", 1, [] { return absl::OkStatus(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("delete the file"));
  }
}

// The check and the effect are one: while an effect runs, nobody raises the fence.
TEST_F(FenceTest, RaisingWaitsForAnEffectInProgress) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.raise("job", 1).ok());
  std::thread successor;
  ASSERT_TRUE(fence
                  .publish("job", 1,
                           [&] {
                             successor = std::thread([&] { EXPECT_TRUE(fence.raise("job", 2).ok()); });
                             // The successor cannot get in before we leave; the fence stays ours to the end.
                             for (int i = 0; i < 200; ++i) EXPECT_EQ(fence.holder()->attempt, 1);
                             return absl::OkStatus();
                           })
                  .ok());
  successor.join();
  EXPECT_FALSE(may_publish("job", 1));
}

// Killed at every file operation of raise(): the fence is the old or the new one, never broken, and never locked for
// good.
TEST_F(FenceTest, KilledAtEveryStepItStaysUsable) {
  ASSERT_TRUE(Fence(dump_).raise("job", 1).ok());
  for (int attempt = 2, step = 1;; ++attempt, ++step) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int seen = 0;
      FaultyFiles files([&](const FileOperation&) {
        if (++seen == step) ::_exit(3);
        return Fault{};
      });
      ::_exit(Fence(dump_, files).raise("job", attempt).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    const auto holder = Fence(dump_).holder();
    ASSERT_TRUE(holder.ok()) << holder.status();
    if (WEXITSTATUS(status) == 0) {
      EXPECT_EQ(holder->attempt, attempt);
      EXPECT_GT(step, 5) << "the hook saw too few operations to mean anything";
      break;
    }
    ASSERT_EQ(WEXITSTATUS(status), 3);
    EXPECT_TRUE(holder->attempt == attempt || holder->attempt < attempt);
    ASSERT_TRUE(Fence(dump_).raise("job", attempt).ok());
  }
}

}  // namespace
}  // namespace titan::storage
