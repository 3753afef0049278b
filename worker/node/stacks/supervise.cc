#include "worker/node/stacks/supervise.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/host/descriptor.h"
#include "common/base/host/file_io.h"
#include "worker/node/shim/process.h"
#include "worker/node/stacks/become_owner.h"
#include "worker/node/stacks/report.h"

namespace titan::stacks {
namespace {

constexpr int64_t kMilli = 1'000'000;
#if defined(__SANITIZE_ADDRESS__) || defined(TITAN_THREAD_SANITIZER)
constexpr rlim_t kMaxMemory = 0;  // A sanitizer's own mappings are larger than any limit.
#else
constexpr rlim_t kMaxMemory = 1 << 30;
#endif
constexpr size_t kMaxAnswer = 1 << 20;

// Header that the child process writes before each report.
struct Head {
  uint32_t place = 0;
  uint32_t bytes = 0;
  uint32_t anything = 0;
  uint32_t last = 0;  // Nonzero: the last report about this process.
};

int64_t share_of(int64_t deadline, size_t processes) {
  const int64_t now = shim::monotonic_nanos();
  return now + (deadline - now) / static_cast<int64_t>(processes);
}

// Limits memory, because demangling a crafted name can take all of it.
void limit_what_it_takes() {
  const rlimit memory{kMaxMemory, kMaxMemory}, no_core{0, 0};
  if (kMaxMemory > 0) ::setrlimit(RLIMIT_DATA, &memory);
  ::setrlimit(RLIMIT_CORE, &no_core);
}

[[noreturn]] void capture_all(const Request& request, size_t first, int64_t deadline, pid_t parent, int to) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  limit_what_it_takes();
  if (!become_owner_of(request.pids[first])) ::_exit(1);  // All requested processes belong to one job.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);                     // The change of user clears it.
  if (::getppid() != parent) ::_exit(1);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  elf_version(EV_CURRENT);
  ElfFiles files;
  for (size_t place = first; place < request.pids.size(); ++place) {
    uint32_t sent = 0;
    capture_process(request.pids[place], share_of(deadline, request.pids.size() - place), request.max_frames, files,
                    [&](const ProcessStacks& process) {
                      const std::string text = report(process);
                      const Head head{static_cast<uint32_t>(place), static_cast<uint32_t>(text.size()),
                                      process.threads.empty() ? 0U : 1U, sent++};
                      if (!host::write_all(to, {reinterpret_cast<const char*>(&head), sizeof(head)}, "the head").ok() ||
                          !host::write_all(to, text, "the report").ok()) {
                        ::_exit(1);
                      }
                    });
  }
  ::_exit(0);
}

// The child process that captures stacks, from its parent's side.
class CaptureChild {
 public:
  CaptureChild(const Request& request, size_t first, int64_t deadline) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    from_ = host::Descriptor(ends[0]);
    const host::Descriptor to(ends[1]);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) capture_all(request, first, deadline, parent, to.get());
    ::fcntl(from_.get(), F_SETFL, O_NONBLOCK);
  }
  ~CaptureChild() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    // Does not block: the child may be in a state in which no signal ends it immediately.
    ::waitpid(pid_, nullptr, WNOHANG);
  }
  CaptureChild(const CaptureChild&) = delete;
  CaptureChild& operator=(const CaptureChild&) = delete;

  enum class Next { kAnswer, kLate, kGone };
  Next wait(int64_t until, Head& head, std::string& text) {
    while (!take(head, text)) {
      const int64_t left = until - shim::monotonic_nanos();
      if (left <= 0) return Next::kLate;
      pollfd ready{from_.get(), POLLIN, 0};
      ::poll(&ready, 1, static_cast<int>(left / kMilli + 1));
      char bytes[65536];
      const ssize_t n = ::read(from_.get(), bytes, sizeof(bytes));
      if (n > 0) in_.append(bytes, static_cast<size_t>(n));
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return Next::kGone;
    }
    return Next::kAnswer;
  }

  std::string how_it_ended() {
    int status = 0;
    if (pid_ <= 0) return std::strerror(errno);
    // The child has closed its end of the pipe, so it ends immediately.
    const pid_t ended = ::waitpid(pid_, &status, 0);
    pid_ = 0;
    if (ended < 0 || !WIFSIGNALED(status)) return absl::StrCat("ended with code ", WEXITSTATUS(status));
    return absl::StrCat("ended by signal ", WTERMSIG(status), ", ", ::strsignal(WTERMSIG(status)));
  }

 private:
  bool take(Head& head, std::string& text) {
    if (in_.size() < sizeof(head)) return false;
    std::memcpy(&head, in_.data(), sizeof(head));
    head.bytes = std::min<uint32_t>(head.bytes, kMaxAnswer);
    if (in_.size() < sizeof(head) + head.bytes) return false;
    text = in_.substr(sizeof(head), head.bytes);
    in_.erase(0, sizeof(head) + head.bytes);
    return true;
  }

  pid_t pid_ = 0;
  host::Descriptor from_;
  std::string in_;
};

Answer fallback(pid_t pid, const std::string& why) {
  const ProcessStacks process = without_stacks(pid, why);
  return {report(process), !process.threads.empty()};
}

}  // namespace

void supervise(const Request& request, const std::function<void(size_t place, const Answer& answer)>& done) {
  const int64_t deadline = shim::monotonic_nanos() + request.deadline_milliseconds * kMilli;
  const size_t count = request.pids.size();
  size_t place = 0;
  while (place < count && shim::monotonic_nanos() < deadline) {
    CaptureChild looker(request, place, deadline);
    CaptureChild::Next next = CaptureChild::Next::kAnswer;
    Answer best;
    for (int64_t until = share_of(deadline, count - place); place < count && next == CaptureChild::Next::kAnswer;) {
      Head head;
      Answer answer;
      next = looker.wait(until, head, answer.text);
      if (next != CaptureChild::Next::kAnswer) break;
      answer.anything = head.anything != 0;
      best = std::move(answer);
      if (head.last == 0) continue;
      done(place++, best);
      best = {};
      if (place < count) until = share_of(deadline, count - place);
    }
    if (place == count) return;
    if (best.text.empty()) {
      best = fallback(request.pids[place], next == CaptureChild::Next::kLate
                                               ? "it could not be read in time"
                                               : absl::StrCat("the process that read it ", looker.how_it_ended()));
    }
    done(place++, best);
  }
  for (; place < count; ++place) done(place, fallback(request.pids[place], "the deadline had passed"));
}

}  // namespace titan::stacks
