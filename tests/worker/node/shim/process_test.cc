#include "worker/node/shim/process.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace titan::shim {
namespace {

// Starts a process with `entry` in its environment that sleeps until it is killed.
pid_t marked_sleeper(const std::string& entry) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(ready[1], STDOUT_FILENO);
    const char* const environment[] = {entry.c_str(), nullptr};
    ::execle("/bin/sh", "sh", "-c", "echo; kill -STOP $$", nullptr, environment);
    _exit(127);
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);  // From now on it has the new environment, and no exec follows.
  ::close(ready[0]);
  ::close(ready[1]);
  return pid;
}

int signal_that_ended(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// Without free descriptors the remaining processes are unknown, which must not look like "none".
TEST(ProcessTest, UnreadableProcIsNotReportedAsEmpty) {
  const std::string entry = absl::StrCat("TITAN_TEST_MARK=", ::getpid());
  const pid_t pid = marked_sleeper(entry);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(STDERR_FILENO);  // The lowest free descriptor.
  ::close(next);
  for (const int more : {0, 1}) {  // 0: /proc cannot be opened. 1: none of its entries can be opened.
    const rlimit few{static_cast<rlim_t>(next + more), before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const absl::StatusOr<int> blind = kill_marked(entry);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_TRUE(absl::IsResourceExhausted(blind.status())) << more << ": " << blind.status();
  }
  EXPECT_EQ(::kill(pid, 0), 0);
  const absl::StatusOr<int> killed = kill_marked(entry);
  ASSERT_TRUE(killed.ok()) << killed.status();
  EXPECT_EQ(*killed, 1);
  EXPECT_EQ(signal_that_ended(pid), SIGKILL);
}

}  // namespace
}  // namespace titan::shim
