#include "controller/cli/bench/peak_memory.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

// Starts a program that runs until it is killed, with `mark` in its environment. Threads of other tests may run, so the
// child makes only system calls before execve().
pid_t marked_program(std::string mark) {
  char program[] = "/bin/cat";
  char* arguments[] = {program, nullptr};
  char* environment[] = {mark.data(), nullptr};
  const pid_t child = fork();
  if (child != 0) return child;
  int ends[2];
  if (pipe(ends) != 0) _exit(1);
  dup2(ends[0], STDIN_FILENO);  // Nobody writes; the other end stays open.
  execve(program, arguments, environment);
  _exit(1);
}

// Only processes with the mark count: the child of a few hundred KiB, not the much larger test.
TEST(PeakMemoryTest, CountsOnlyMarkedProcesses) {
  const std::string mark = absl::StrCat("TITAN_PEAK_MEMORY_TEST=", getpid());
  const pid_t earlier = marked_program(mark + "0");
  const PeakMemory other(mark + "0");  // A process that was there before does not count.
  const PeakMemory memory(mark);
  const pid_t child = marked_program(mark);
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (memory.bytes() == 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
  const int64_t found = memory.bytes(), foreign = other.bytes();
  for (const pid_t pid : {earlier, child}) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  EXPECT_GT(found, 10 << 10);
  EXPECT_LT(found, 64 << 20);
  EXPECT_EQ(foreign, 0);
}

}  // namespace
}  // namespace titan::cli
