#include "controller/cli/bench/peak_memory.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

// A program with `mark` in its environment that waits for its end.
pid_t marked_program(const std::string& mark) {
  const pid_t child = fork();
  if (child != 0) return child;
  char program[] = "/bin/cat";
  std::string word = mark;
  char* arguments[] = {program, nullptr};
  char* environment[] = {word.data(), nullptr};
  int ends[2];
  if (pipe(ends) != 0) _exit(1);
  dup2(ends[0], STDIN_FILENO);  // Nobody writes; the other end stays open.
  execve(program, arguments, environment);
  _exit(1);
}

// Only what carries the mark counts: a process of a few hundred KiB, not this one.
TEST(PeakMemoryTest, CountsTheMarkedProcessesAlone) {
  const std::string mark = absl::StrCat("TITAN_PEAK_MEMORY_TEST=", getpid());
  const pid_t child = marked_program(mark);
  ASSERT_GT(child, 0);
  int64_t alien = -1, found = 0;
  {
    const PeakMemory other(mark + "0");
    const PeakMemory memory(mark);
    for (const absl::Time end = absl::Now() + absl::Seconds(20); found == 0 && absl::Now() < end;
         found = memory.bytes()) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    alien = other.bytes();
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GT(found, 10 << 10);
  EXPECT_LT(found, 64 << 20);
  EXPECT_EQ(alien, 0);
}

}  // namespace
}  // namespace titan::cli
