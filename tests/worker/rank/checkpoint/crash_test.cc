// Tests a process that dies at any file operation of a save: earlier commits stay loadable, and a partly written step
// is never taken for a checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <set>

#include "common/io/storage/faulty_files.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint::testing {
namespace {

using storage::FileOperation;
using storage::posix_files;

class CrashTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    output_rows = 20;
    dump_ = storage::join_path(::testing::TempDir(),
                               "crash." + std::to_string(::getpid()) + "." + std::to_string(GetParam()));
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
  }
  void TearDown() override { posix_files().remove_folder(dump_).IgnoreError(); }

  // Forks a process that saves step 5 and exits at the n-th file operation of saving step 10 (which purges nothing) and
  // then 15 (which purges 5). Returns whether it exited there, and names that operation.
  bool die_at(int n, std::string& operation) {
    int pipe_ends[2];
    EXPECT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);
      std::atomic<int> seen{0};
      std::atomic<bool> armed{false};
      storage::FaultyFiles files([&](const FileOperation& op) {
        if (armed && ++seen == n) {
          const std::string what = std::string(storage::name(op.kind)) + " " + op.path;
          if (::write(pipe_ends[1], what.data(), what.size()) < 0) ::_exit(4);
          ::_exit(3);
        }
        return storage::Fault{};
      });
      Attempt::Options options{.dump = dump_, .world = GetParam(), .files = &files};
      options.config.keep_latest_k = 2;
      Attempt job(std::move(options));
      if (!job.save(5).ok()) ::_exit(5);
      armed = true;
      if (!job.save(10).ok() || !job.save(15).ok()) ::_exit(6);
      ::_exit(0);
    }
    ::close(pipe_ends[1]);
    char text[1024];
    const ssize_t size = ::read(pipe_ends[0], text, sizeof text);
    operation.assign(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    ::close(pipe_ends[0]);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 0)) << "status " << status;
    return WIFEXITED(status) && WEXITSTATUS(status) == 3;
  }

  std::string dump_;
};

TEST_P(CrashTest, PreviousCheckpointStaysLoadable) {
  // Saves of small files need every kind of operation, too. The loop ends when both saves finish.
  std::set<int64_t> resumed;
  int n = 1;
  for (;; ++n) {
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
    std::string operation;
    const bool died = die_at(n, operation);
    SCOPED_TRACE("died at operation " + std::to_string(n) + ": " + operation);
    // The successor runs in this process and always has two ranks.
    Attempt successor({.dump = dump_, .world = 2, .attempt = 2});
    ASSERT_TRUE(successor.raised().ok()) << successor.raised();
    const auto loaded = successor.load();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->source, Source::kCheckpoint);
    EXPECT_TRUE(successor.events("checkpoint_rejected").empty()) << "a torn save is not a candidate";
    resumed.insert(loaded->step);
    ASSERT_TRUE(successor.save(20).ok());
    // Only committed steps of the dead attempt are left.
    const auto names = posix_files().list(dump_ + "/checkpoint");
    for (const std::string& name : *names) {
      if (name.rfind("step-", 0) != 0) continue;
      EXPECT_TRUE(posix_files().exists(dump_ + "/checkpoint/" + name + "/manifest.json")) << name;
    }
    if (!died) break;
    if (HasFatalFailure()) return;
  }
  std::printf("died before each of %d file operations\n", n - 1);
  EXPECT_GT(n, 30) << "too few operations to mean anything";
  EXPECT_THAT(resumed, ::testing::ElementsAre(5, 10, 15));
}

INSTANTIATE_TEST_SUITE_P(Worlds, CrashTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace titan::checkpoint::testing
