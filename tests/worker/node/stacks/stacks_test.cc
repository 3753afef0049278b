#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host/descriptor.h"
#include "common/base/host/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/stacks/target.h"
#include "worker/node/shim/process.h"
#include "worker/node/stacks/become_owner.h"
#include "worker/node/stacks/supervise.h"

namespace titan::stacks {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kDeadline[] = "60000";  // Milliseconds; titan-stacks needs about twenty.

std::string program() {
  const char* const folder = std::getenv("TITAN_BIN");
  if (folder != nullptr) return absl::StrCat(folder, "/titan-stacks");
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/titan-stacks").string();
}

// A running titan-stacks.
class Tool {
 public:
  explicit Tool(std::vector<std::string> arguments) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    out_ = host::Descriptor(ends[0]);
    const host::Descriptor in(ends[1]);
    arguments.insert(arguments.begin(), program());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::dup2(in.get(), STDOUT_FILENO);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  ~Tool() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;

  pid_t pid() const { return pid_; }
  // Returns the process with which titan-stacks reads the stacks, once it exists; 0 if titan-stacks has ended before.
  pid_t stack_reader() const {
    const std::string children = absl::StrCat("/proc/", pid_, "/task/", pid_, "/children");
    for (const int64_t ticks = shim::start_ticks(pid_); shim::alive(pid_, ticks);) {
      const absl::StatusOr<std::string> text = host::read_file(children);
      if (text.ok() && !text->empty()) return std::atoi(text->c_str());
    }
    return 0;
  }

  struct Result {
    int exit_code = -1;
    std::string text;
  };
  Result wait() {
    Result result;
    char bytes[65536];
    for (ssize_t n = 0; (n = ::read(out_.get(), bytes, sizeof(bytes))) > 0;) {
      result.text.append(bytes, static_cast<size_t>(n));
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    return result;
  }

 private:
  pid_t pid_ = 0;
  host::Descriptor out_;
};

Tool::Result stacks_of(const Target& target) {
  return Tool({"--deadline-milliseconds", kDeadline, absl::StrCat(target.pid())}).wait();
}

std::string block_with(const std::string& text, const std::string& part) {
  for (const absl::string_view block : absl::StrSplit(text, "\n\n")) {
    if (absl::StrContains(block, part)) return std::string(block);
  }
  return "";
}

pid_t ended_pid() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  return pid;
}

const Target::Thread kSpins{nullptr, "spinner"};
const Target::Thread kSleeps{titan_test_sleeps, "sleeper"};
const Target::Thread kInTheKernel{titan_test_waits_for_vfork, "forker"};

// Whatever a thread does, its stack is printed with function names, and the process continues as before.
TEST(StacksTest, PrintsTheStackOfEveryThread) {
  std::vector<Target::Thread> threads = {
      kSleeps, kSpins, {titan_test_waits_for_a_mutex, "locker"}, {titan_test_reads_a_pipe, "reader"}};
  threads.insert(threads.end(), 40, {titan_test_waits_for_a_condition, "pool"});
  const Target target(threads);
  const Tool::Result result = stacks_of(target);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.text, ::testing::StartsWith(absl::StrCat("process ", target.pid(), " sleeper, 44 threads\n\n",
                                                              "1 thread: ", target.pid(), " (sleeper) sleeping\n")));
  EXPECT_THAT(block_with(result.text, "(sleeper)"),
              ContainsRegex("#[1-9] titan_test_sleeps\\+0x[0-9a-f]* \\(stacks_test\\)"));
  EXPECT_THAT(block_with(result.text, "(sleeper)"), ContainsRegex("#[0-9]* main\\+0x"));
  EXPECT_THAT(block_with(result.text, "(spinner)"),
              ContainsRegex("\\(spinner\\) [a-z]*ing\n  #0 titan_test_spins\\+0x"));
  EXPECT_THAT(block_with(result.text, "(locker)"), HasSubstr(" titan_test_waits_for_a_mutex+0x"));
  EXPECT_THAT(block_with(result.text, "(reader)"), HasSubstr(" titan_test_reads_a_pipe+0x"));
  EXPECT_THAT(block_with(result.text, "(pool)"), AllOf(HasSubstr("40 threads: "), HasSubstr(", ...\n"),
                                                       HasSubstr(" titan_test_waits_for_a_condition+0x")));
  EXPECT_TRUE(target.keeps_running());
}

TEST(StacksTest, AStoppedProcessStaysStopped) {
  const Target target({kSleeps, kSpins});
  ASSERT_EQ(::kill(target.pid(), SIGSTOP), 0);
  ASSERT_EQ(::waitpid(target.pid(), nullptr, WUNTRACED), target.pid());
  const long count = target.count();
  for (int i = 0; i < 2; ++i) {
    const Tool::Result result = stacks_of(target);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.text, AllOf(HasSubstr("(sleeper) stopped"), HasSubstr("titan_test_sleeps+0x"),
                                   HasSubstr("(spinner) stopped"), HasSubstr("titan_test_spins+0x")));
    EXPECT_TRUE(target.stays_stopped());
  }
  EXPECT_EQ(target.count(), count);
  ASSERT_EQ(::kill(target.pid(), SIGCONT), 0);
  EXPECT_TRUE(target.keeps_running());
}

// Signals that arrive meanwhile are neither lost nor doubled.
TEST(StacksTest, SignalsAreNeitherLostNorDoubled) {
  const Target target({kSleeps, kSpins});
  Tool tool({absl::StrCat(target.pid())});
  ASSERT_EQ(::kill(target.pid(), SIGUSR1), 0);
  tool.wait();
  int status = 0;
  ASSERT_EQ(::waitpid(target.pid(), &status, 0), target.pid());
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
}

// Killed at any moment, titan-stacks leaves no thread stopped or traced.
TEST(StacksTest, KillingItLeavesNoThreadStopped) {
  std::vector<Target::Thread> threads(20, kSleeps);
  threads.push_back(kSpins);
  const Target target(threads);
  for (int i = 0; i < 24; ++i) {
    {
      const Tool tool({absl::StrCat(target.pid())});
      if (i > 2) tool.stack_reader();
      ::usleep(static_cast<useconds_t>(i * 400));  // Another moment in each round.
    }
    ASSERT_TRUE(target.keeps_running()) << i;
  }
}

// A thread that nothing can stop is described by the kernel's data, without waiting.
TEST(StacksTest, ReportsAThreadBlockedInTheKernel) {
  const Target target({kSpins, kInTheKernel});
  const Tool::Result result = stacks_of(target);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(
      block_with(result.text, "(forker)"),
      AllOf(HasSubstr("(forker) waiting in the kernel\n"),
            HasSubstr("no stack: it waits uninterruptibly in the kernel; in the kernel: "), HasSubstr("system call ")));
  EXPECT_THAT(block_with(result.text, "(spinner)"), HasSubstr("titan_test_spins+0x"));
  EXPECT_TRUE(target.keeps_running());
}

TEST(StacksTest, ThreadsMayOutliveTheMainOne) {
  const Target target({{titan_test_ends, "leaver"}, kSpins, kSleeps});
  const Tool::Result result = stacks_of(target);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(block_with(result.text, "(leaver)"), HasSubstr("(leaver) ended\n  no stack: it has ended"));
  EXPECT_THAT(block_with(result.text, "(spinner)"), HasSubstr("titan_test_spins+0x"));
  EXPECT_THAT(block_with(result.text, "(sleeper)"), HasSubstr("titan_test_sleeps+0x"));
  EXPECT_TRUE(target.keeps_running());
}

// The process that reads stacks handles untrusted data: its crash costs one target's stacks, and its hang only that
// target's share of the time.
TEST(StacksTest, OneProcessDoesNotAffectTheOthers) {
  const Target bad({kSleeps, kInTheKernel});  // It keeps the reading process busy for a tenth of a second.
  const Target good({kSpins, kSleeps});
  for (const auto& [signal, why] : {std::pair(SIGKILL, "no stack: the process that read it ended by signal 9"),
                                    std::pair(SIGSTOP, "no stack: it could not be read in time")}) {
    Tool::Result result;
    for (int attempt = 0; attempt < 50 && !absl::StrContains(result.text, why); ++attempt) {
      Tool tool({"--deadline-milliseconds", signal == SIGSTOP ? "2000" : kDeadline, absl::StrCat(bad.pid()),
                 absl::StrCat(good.pid())});
      const pid_t stack_reader = tool.stack_reader();
      if (stack_reader != 0) ::kill(stack_reader, signal);
      result = tool.wait();
    }
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.text,
                AllOf(HasSubstr(absl::StrCat("process ", bad.pid(), " sleeper, 2 threads")), HasSubstr(why)));
    EXPECT_THAT(block_with(result.text, "(spinner)"), HasSubstr("titan_test_spins+0x"));
    EXPECT_TRUE(good.keeps_running());
  }
}

TEST(StacksTest, ReportsAMissingProcess) {
  const pid_t gone = ended_pid();
  const Target target({kSleeps});
  const Tool::Result result =
      Tool({"--deadline-milliseconds", kDeadline, absl::StrCat(gone), absl::StrCat(target.pid())}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.text, HasSubstr(absl::StrCat("process ", gone, " does not exist\n")));
  EXPECT_THAT(result.text, HasSubstr("titan_test_sleeps+0x"));  // The others are printed anyway.
}

TEST(StacksTest, UntraceableProcessShowsOnlyPublicFacts) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Target target({kSleeps});
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t other = ::fork();  // Calls the library, because that user may not reach the build folder.
  if (other == 0) {
    constexpr uid_t kNobody = 65534;
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(1);
    supervise({{target.pid()}, 60'000, 64}, [&](size_t, const Answer& answer) {
      (void)!::write(ends[1], answer.text.data(), answer.text.size());
      ::_exit(answer.anything ? 0 : 1);
    });
    ::_exit(1);
  }
  ::close(ends[1]);
  char bytes[4096] = {};
  (void)!::read(ends[0], bytes, sizeof(bytes) - 1);
  ::close(ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(bytes, AllOf(HasSubstr("(sleeper) sleeping\n"), HasSubstr("no stack: this user may not trace it: run ")));
}

// Root does not read files and memory that a user made to deceive the reader.
TEST(StacksTest, RootReadsAnothersProcessAsThatUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kNobody = 65534;
  const Target target({kSleeps}, kNobody);
  const Tool::Result result = Tool({"--deadline-milliseconds", kDeadline, absl::StrCat(target.pid())}).wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.text, HasSubstr("titan_test_sleeps+0x"));
  const pid_t other = ::fork();
  if (other == 0) {
    if (!become_owner_of(target.pid()) || ::geteuid() != kNobody || ::getegid() != kNobody) ::_exit(1);
    if (::getgroups(0, nullptr) != 0 || ::setuid(0) == 0) ::_exit(2);
    const std::string status = host::read_file("/proc/self/status").value_or("");
    const bool one_right = status.find("CapPrm:\t0000010000000000\n") != status.npos;  // CAP_CHECKPOINT_RESTORE.
    const bool none = status.find("CapPrm:\t0000000000000000\n") != status.npos;
    ::_exit((one_right || none) && status.find("NoNewPrivs:\t1\n") != status.npos ? 0 : 3);
  }
  int ended = 0;
  ASSERT_EQ(::waitpid(other, &ended, 0), other);
  EXPECT_EQ(ended, 0);
  EXPECT_TRUE(become_owner_of(::getpid()));  // Root's own process: nothing is given up.
  EXPECT_EQ(::geteuid(), 0u);
}

TEST(StacksTest, PassedDeadlineShowsOnlyKernelData) {
  const Target target({kSleeps, {titan_test_reads_a_pipe, "a\x1b[31m"}});
  const Tool::Result result = Tool({"--deadline-milliseconds", "0", absl::StrCat(target.pid())}).wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.text,
              AllOf(HasSubstr("(sleeper) sleeping\n"), HasSubstr("(a?[31m) sleeping\n"),
                    HasSubstr("no stack: the deadline had passed; in the kernel: "), Not(HasSubstr("#0"))));
  EXPECT_THAT(result.text, Not(HasSubstr("\x1b")));
}

TEST(StacksTest, DeepStacksAreCut) {
  const Target target({kSleeps});
  const Tool::Result result =
      Tool({"--deadline-milliseconds", kDeadline, "--most-frames", "2", absl::StrCat(target.pid())}).wait();
  EXPECT_THAT(result.text, AllOf(HasSubstr("  #1 "), Not(HasSubstr("#2 ")), HasSubstr("  ... more frames\n")));
}

TEST(StacksTest, WrongUsageIsReported) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"0"},
                                             {"x"},
                                             {"1", "--name", "1=../x"},
                                             {"1", "--deadline-milliseconds"},
                                             {"1", "--most-frames", "-1"}}) {
    EXPECT_EQ(Tool(arguments).wait().exit_code, 2);
  }
}

}  // namespace
}  // namespace titan::stacks
