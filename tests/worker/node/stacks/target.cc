#include "tests/worker/node/stacks/target.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <new>
#include <sstream>
#include <string>
#include <thread>

namespace {

constexpr int kPollMicroseconds = 500;
constexpr int kMaxPolls = 60'000;  // Number of polls: half a minute.

// A call at the end of a function would become a jump; with this after it, the function stays on the stack.
void stay() { asm volatile(""); }  // NOLINT(hicpp-no-assembler)

}  // namespace

extern "C" {

[[gnu::noinline]] void titan_test_spins(std::atomic<long>* counter) {
  for (;;) counter->fetch_add(1, std::memory_order_relaxed);
}
[[gnu::noinline]] void titan_test_sleeps() {
  for (;;) ::sleep(1000);
}
[[gnu::noinline]] void titan_test_waits_for_a_condition() {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) never.wait(lock);
}
[[gnu::noinline]] void titan_test_waits_for_a_mutex() {
  static std::timed_mutex taken;
  taken.lock();  // Both locks are in this function; the second one blocks forever.
  stay();
  taken.lock();
  stay();
}
[[gnu::noinline]] void titan_test_reads_a_pipe() {
  int ends[2];
  char byte = 0;
  if (::pipe(ends) == 0) (void)!::read(ends[0], &byte, 1);
  stay();
}
// Stays in state D, where no tracer can stop it, until the child ends.
[[gnu::noinline]] void titan_test_waits_for_vfork() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const pid_t child = ::vfork();
#pragma GCC diagnostic pop
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::pause();
    ::_exit(0);
  }
  stay();
}

void titan_test_ends() { ::syscall(SYS_exit, 0); }  // Ends only this thread.

}  // extern "C"

namespace titan::stacks {
namespace {

std::string states_of(pid_t pid) {
  std::string states;
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    std::ostringstream stat;
    stat << std::ifstream(thread.path() / "stat").rdbuf();
    const std::string text = stat.str();
    const size_t end = text.rfind(')');
    if (end != std::string::npos && end + 2 < text.size()) states += text[end + 2];
  }
  return states;
}

bool eventually(const auto& done) {
  for (int i = 0; i < kMaxPolls; ++i) {
    if (done()) return true;
    ::usleep(kPollMicroseconds);
  }
  return false;
}

}  // namespace

Target::Target(std::vector<Thread> threads, uid_t user)
    : page_(new (::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Page) {
  pid_ = ::fork();
  if (pid_ == 0) run(threads, user);
  size_t spinning = 0;
  for (const Thread& thread : threads) spinning += thread.function == nullptr ? 1 : 0;
  eventually([&] {
    const std::string states = states_of(pid_);
    size_t waiting = 0;
    for (const char state : states) waiting += state == 'S' || state == 'D' || state == 'Z' ? 1 : 0;
    return page_->arrived == static_cast<int>(threads.size()) && waiting + spinning >= threads.size() &&
           (spinning == 0 || page_->count > 0);
  });
}

void Target::run(const std::vector<Thread>& threads, uid_t user) {
  if (user != ::geteuid() && (::setgid(user) != 0 || ::setuid(user) != 0)) ::_exit(1);
  ::prctl(PR_SET_DUMPABLE, 1);  // A program that starts as this user is dumpable.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto enter = [this](const Thread& thread) {
    ::prctl(PR_SET_NAME, thread.name);
    ++page_->arrived;
    if (thread.function == nullptr) {
      titan_test_spins(&page_->count);
    } else {
      thread.function();
    }
  };
  for (size_t i = 1; i < threads.size(); ++i) std::thread(enter, threads[i]).detach();
  enter(threads[0]);
  ::_exit(1);
}

Target::~Target() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  ::munmap(page_, sizeof(Page));
}

bool Target::keeps_running() const {
  const long before = count();
  return eventually([&] { return count() > before && states_of(pid_).find_first_of("tT") == std::string::npos; });
}

bool Target::stays_stopped() const {
  return eventually([&] { return states_of(pid_).find_first_not_of('T') == std::string::npos; });
}

}  // namespace titan::stacks
