#include "common/io/storage/fence.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "common/io/storage/faulty_files.h"
#include "common/io/storage/folder_id.h"
#include "common/io/storage/process_identity.h"

namespace titan::storage {
namespace {

class FenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ = join_path(::testing::TempDir(), "fence." + std::to_string(::getpid()) + "." +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { posix_files().remove_folder(dump_).IgnoreError(); }

  // Returns whether (uid, attempt) may publish now.
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

// A new job takes over an old folder with any attempt number. The old job can never take it back: otherwise the two
// would alternate in training one model.
TEST_F(FenceTest, ANewJobTakesOverForGood) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.raise("old", 7).ok());
  ASSERT_TRUE(fence.raise("new", 1).ok());
  EXPECT_TRUE(may_publish("new", 1));
  EXPECT_FALSE(may_publish("old", 7));
  for (const int attempt : {7, 8, 1000}) {
    const absl::Status lost = fence.raise("old", attempt);
    EXPECT_TRUE(is_fenced(lost)) << lost;
    EXPECT_THAT(std::string(lost.message()), ::testing::HasSubstr("was taken over by job new"));
  }
  EXPECT_TRUE(may_publish("new", 1)) << "the refused attempts changed nothing";
}

// Jobs started by hand repeat their names: such a job may take a folder again, with the number after the last one.
TEST_F(FenceTest, JobWithARepeatedNameMayReturn) {
  const Fence fence(dump_);
  EXPECT_EQ(fence.raise({.job_uid = "by-hand"})->attempt, 1);
  EXPECT_EQ(fence.raise({.job_uid = "by-hand"})->attempt, 2);
  ASSERT_TRUE(fence.raise("job", 5).ok());
  EXPECT_EQ(fence.raise({.job_uid = "by-hand"})->attempt, 3);
  EXPECT_TRUE(is_fenced(fence.raise("job", 6)));
}

// Claims without a local process to check, like those of a holder on another machine.
class TakeTest : public FenceTest {
 protected:
  static constexpr char kElsewhere[] = "another-boot pid:[1] 7 7";

  Fence::Claim claim(const std::string& uid, int attempt = 1) {
    return {.job_uid = uid,
            .attempt = attempt,
            .job = "projects/p/jobs/" + uid,
            .host = "h-" + uid,
            .pid = 7,
            .process = kElsewhere};
  }
  // Makes the holder's last beat older.
  void age_beat(absl::Duration by) {
    const std::string path = join_path(dump_, ".fence-alive");
    const timespec time = absl::ToTimespec(*posix_files().modified(path) - by);
    const timespec both[] = {time, time};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), both, 0), 0);
  }
  Fence::Watch watch() {
    return {[this](absl::Duration pause) { slept_ += pause; }, [this](const std::string& text) { messages_ += text; }};
  }

  // Lets the file system's clock advance while take() sleeps.
  class PassingTime : public FaultyFiles {
   public:
    explicit PassingTime(const absl::Duration& passed) : FaultyFiles([](auto&) { return Fault{}; }), passed_(passed) {}
    absl::StatusOr<absl::Time> touch(const std::string& path) override {
      absl::StatusOr<absl::Time> time = FaultyFiles::touch(path);
      return time.ok() ? *time + passed_ : time;
    }

   private:
    const absl::Duration& passed_;
  };

  absl::Duration slept_;
  PassingTime files_{slept_};
  std::string messages_;
};

// A newcomer is refused with the holder's name as soon as it sees a beat, and the holder is not disturbed.
TEST_F(TakeTest, FolderInUseIsRefusedWithItsHolder) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.take(claim("first"), {}).ok());
  age_beat(absl::Seconds(1));
  int pauses = 0;
  Fence::Watch watch;
  watch.sleep = [&](absl::Duration) {
    if (++pauses == 3) {
      EXPECT_TRUE(fence.beat("first", 1).ok());
    }
  };
  const absl::Status refused = fence.take(claim("second"), watch).status();
  EXPECT_TRUE(is_in_use(refused)) << refused;
  EXPECT_EQ(pauses, 3);
  for (const char* part : {"projects/p/jobs/first", "host h-first", "process 7", "attempt 1", dump_.c_str()}) {
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(part));
  }
  EXPECT_TRUE(may_publish("first", 1));
  EXPECT_FALSE(may_publish("second", 1));
  EXPECT_TRUE(fence.take(claim("first", 2), {}).ok()) << "a job's own next attempt does not wait";
}

// If the holder was killed, the next job gets the folder after kFenceHeartbeatTimeout and reports what it waits for.
TEST_F(TakeTest, SilentHolderIsReplacedAfterTheTimeout) {
  const Fence fence(dump_, files_);
  ASSERT_TRUE(fence.take(claim("first"), {}).ok());
  const auto taken = fence.take(claim("second"), watch());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_GE(slept_, kFenceHeartbeatTimeout - absl::Seconds(1));
  EXPECT_LE(slept_, kFenceHeartbeatTimeout + absl::Seconds(1));
  EXPECT_THAT(messages_,
              ::testing::HasSubstr("was not released by job projects/p/jobs/first (host h-first, process 7)"));
  EXPECT_THAT(taken->taken_from, ::testing::HasSubstr("projects/p/jobs/first"));
  EXPECT_TRUE(is_fenced(fence.beat("first", 1))) << "the old holder's beats must not keep the new one alive";
  EXPECT_TRUE(is_fenced(fence.raise(claim("first", 2)).status()));
}

TEST_F(TakeTest, LongSilenceIsNotWaitedForAgain) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.take(claim("first"), {}).ok());
  age_beat(kFenceHeartbeatTimeout);
  EXPECT_TRUE(fence.take(claim("second"), watch()).ok());
  EXPECT_EQ(slept_, absl::ZeroDuration());
}

// A file server with a clock that was set back must not make a dead holder immortal.
TEST_F(TakeTest, FutureBeatIsWatched) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.take(claim("first"), {}).ok());
  age_beat(-absl::Hours(5));
  EXPECT_TRUE(fence.take(claim("second"), watch()).ok());
  EXPECT_LE(slept_, kFenceHeartbeatTimeout + absl::Seconds(1));
}

// A holder that ended on this machine is known to be gone; a live one is not, and neither is one on another machine.
TEST_F(TakeTest, EndedLocalHolderIsReplacedAtOnce) {
  const Fence fence(dump_);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Fence::Claim mine = claim("first");
    mine.process = process_identity();
    ::_exit(fence.raise(mine).ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(WEXITSTATUS(status), 0);
  Fence::Claim mine = claim("second");
  mine.process = process_identity();
  ASSERT_FALSE(mine.process.empty());
  EXPECT_TRUE(fence.raise(mine).ok());
  EXPECT_TRUE(is_in_use(fence.raise(claim("third")).status()));
  EXPECT_FALSE(process_has_ended(kElsewhere));
}

// A folder that was released is free at once; a job that no longer holds it cannot release it.
TEST_F(TakeTest, ReleasedIsFree) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.take(claim("first"), {}).ok());
  {
    FenceLease hold(fence, "first", 1);
    hold.release();
    hold.release();
  }
  EXPECT_TRUE(fence.holder()->released);
  EXPECT_TRUE(fence.take(claim("second"), watch()).ok());
  EXPECT_EQ(slept_, absl::ZeroDuration());
  EXPECT_TRUE(is_fenced(fence.release("first", 1)));
  EXPECT_FALSE(fence.holder()->released);
}

// The lease's own thread beats without calls.
TEST_F(TakeTest, LeaseBeatsUntilFenced) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.take(claim("first"), {}).ok());
  const std::string alive = join_path(dump_, ".fence-alive");
  const FenceLease hold(fence, "first", 1, absl::Milliseconds(1));
  age_beat(absl::Hours(1));
  const absl::Time old = *posix_files().modified(alive);
  const auto moved = [&] { return *posix_files().modified(alive) > old + absl::Minutes(30); };
  for (int i = 0; i < 20'000 && !moved(); ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(moved());
}

// The fence keeps the newest complete step of each checkpoint folder across attempts and jobs.
TEST_F(FenceTest, RemembersWhatWasCommitted) {
  const Fence fence(dump_);
  const auto done = [] { return absl::OkStatus(); };
  ASSERT_TRUE(fence.raise("job", 1).ok());
  ASSERT_TRUE(fence.publish_step("job", 1, "checkpoint", 10, done).ok());
  ASSERT_TRUE(fence.publish_step("job", 1, "other", 5, done).ok());
  EXPECT_FALSE(fence.publish_step("job", 1, "checkpoint", 20, [] { return absl::DataLossError("disk"); }).ok());
  EXPECT_TRUE(is_fenced(fence.publish_step("late", 1, "checkpoint", 30, done)));
  ASSERT_TRUE(fence.raise("job", 2).ok());
  const auto taken = fence.raise({.job_uid = "new", .attempt = 1});
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(taken->committed.at("checkpoint").step, 10);
  EXPECT_EQ(taken->committed.at("checkpoint").job_uid, "job");
  EXPECT_EQ(taken->committed.at("other").step, 5);
}

// Fences of older versions have two members; the missing ones have safe defaults.
TEST_F(FenceTest, ReadsAnOldFence) {
  ASSERT_TRUE(posix_files().make_folders(dump_).ok());
  const std::string old = R"({"attempt":3,"former":{"older":2},"job_uid":"job"})";
  ASSERT_TRUE(atomic_write(posix_files(), join_path(dump_, "fence.json"), old).ok());
  EXPECT_TRUE(may_publish("job", 3));
  EXPECT_TRUE(is_fenced(Fence(dump_).raise("older", 9)));
  EXPECT_TRUE(Fence(dump_).raise("new", 1).ok()) << "the old fence has no heartbeat";
}

// The id is created once and identifies the folder under every path. A link in place of its file is not followed.
TEST_F(FenceTest, FolderHasASingleId) {
  const auto id = ensure_folder_id(posix_files(), dump_, absl::Seconds(1));
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(Fence(dump_).raise({.job_uid = "job", .attempt = 1})->folder, *id);
  EXPECT_EQ(*ensure_folder_id(posix_files(), dump_, absl::Seconds(1)), *id);
  const std::string link = dump_ + ".link";
  ASSERT_EQ(::symlink(dump_.c_str(), link.c_str()), 0);
  EXPECT_EQ(*compare_folder(posix_files(), link, *id), FolderComparison::kSame);
  ::unlink(link.c_str());

  const std::string path = join_path(dump_, ".titan-folder");
  ASSERT_TRUE(posix_files().remove(path).ok());
  EXPECT_EQ(*compare_folder(posix_files(), dump_, *id), FolderComparison::kMissing);
  EXPECT_EQ(*compare_folder(posix_files(), dump_ + "/none", *id), FolderComparison::kMissing);
  EXPECT_FALSE(posix_files().exists(dump_ + "/none")) << "reading creates nothing";
  ASSERT_TRUE(Fence(dump_).raise("job", 2).ok());
  EXPECT_EQ(*compare_folder(posix_files(), dump_, *id), FolderComparison::kAnother);
  ASSERT_TRUE(posix_files().remove(path).ok());
  ASSERT_EQ(::symlink("fence.json", path.c_str()), 0);
  EXPECT_FALSE(read_folder_id(posix_files(), dump_).ok());
  ASSERT_TRUE(atomic_write(posix_files(), path, "{}").ok());
  EXPECT_EQ(read_folder_id(posix_files(), dump_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(FenceTest, UnreadableFenceReportsHowToRepairIt) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.raise("job", 1).ok());
  for (const char* text :
       {"", "{", "[]", "{\"job_uid\":1}", "{\"job_uid\":\"job\",\"attempt\":\"1\"}",
        "{\"job_uid\":\"job\",\"attempt\":1,\"former\":[1]}", "{\"job_uid\":\"job\",\"attempt\":1,\"pid\":\"x\"}"}) {
    ASSERT_TRUE(atomic_write(posix_files(), join_path(dump_, "fence.json"), text).ok());
    const absl::Status status = fence.publish("job", 1, [] { return absl::OkStatus(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("delete the file"));
  }
}

// The check and the effect are atomic: while an effect runs, no other attempt can raise the fence.
TEST_F(FenceTest, RaisingWaitsForAnEffectInProgress) {
  const Fence fence(dump_);
  ASSERT_TRUE(fence.raise("job", 1).ok());
  std::thread successor;
  ASSERT_TRUE(fence
                  .publish("job", 1,
                           [&] {
                             successor = std::thread([&] { EXPECT_TRUE(fence.raise("job", 2).ok()); });
                             // The successor waits for the lock until this effect returns, so the fence stays with
                             // attempt 1.
                             for (int i = 0; i < 200; ++i) EXPECT_EQ(fence.holder()->attempt, 1);
                             return absl::OkStatus();
                           })
                  .ok());
  successor.join();
  EXPECT_FALSE(may_publish("job", 1));
}

// raise() is killed at every file operation: the fence is the old one or the new one, and never broken or locked for
// good.
TEST_F(FenceTest, StaysUsableAfterAKillAtAnyStep) {
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
