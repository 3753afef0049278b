#include "worker/node/stacks/capture.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "worker/node/shim/process.h"

namespace titan::stacks {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr size_t kPages = 32;  // 128 KiB hold several hundred LibTorch frames.
constexpr size_t kMaxThreads = 512;
constexpr int64_t kLookAgainNanos = 100'000'000;

// Copies page by page; pages beyond the stack's end are left out.
std::vector<std::byte> copy_stack(pid_t tid, uint64_t from) {
  std::vector<std::byte> bytes(kPages * kPageBytes);
  std::vector<iovec> pages;
  for (uint64_t at = from; pages.size() < kPages;) {
    const uint64_t next = (at / kPageBytes + 1) * kPageBytes;
    pages.push_back({reinterpret_cast<void*>(at), next - at});  // NOLINT: an address of another process.
    at = next;
  }
  iovec place{bytes.data(), bytes.size()};
  const ssize_t got = ::process_vm_readv(tid, &place, 1, pages.data(), pages.size(), 0);
  bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
  bytes.shrink_to_fit();
  return bytes;
}

std::string why_not(pid_t pid, int failed) {
  if (failed == ESRCH) return "it has ended";
  const absl::StatusOr<std::string> status = host::read_file(absl::StrCat("/proc/", pid, "/status"));
  if (status.ok() && absl::StrContains(*status, "TracerPid:") && !absl::StrContains(*status, "TracerPid:\t0")) {
    return "another program, such as a debugger, traces it";
  }
  if (failed != EPERM) return std::strerror(failed);
  return "this user may not trace it: run titan-stacks as its user or as root (sysctl kernel.yama.ptrace_scope)";
}

class Threads {
 public:
  Threads(pid_t pid, int64_t deadline_nanos) : pid_(pid), deadline_(deadline_nanos) {}

  std::vector<Capture> capture() {
    ask_to_stop();
    while (!waited_for_.empty() && shim::monotonic_nanos() < deadline_) {
      int status = 0;
      const pid_t tid = ::waitpid(-1, &status, __WALL | WNOHANG);
      if (tid > 0) {
        changed(tid, status);
      } else if (tid < 0 || (nobody_for_a_while() && all_in_the_kernel())) {
        break;
      }
    }
    for (const auto& [tid, place] : waited_for_) did_not_stop(captures_[place]);
    return std::move(captures_);
  }

 private:
  void ask_to_stop() {
    for (const pid_t tid : threads_of(pid_)) captures_.emplace_back().facts = facts_of(pid_, tid);
    for (size_t place = 0; place < captures_.size(); ++place) {
      const pid_t tid = captures_[place].facts.tid;
      if (place >= kMaxThreads) {
        captures_[place].missing = absl::StrCat("it is one of more than ", kMaxThreads, " threads");
      } else if (captures_[place].facts.state == 'Z') {
        captures_[place].missing = "it has ended";  // A main thread may end while others keep running.
      } else if (::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0 ||
                 ::ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0) {
        captures_[place].missing = why_not(pid_, errno);
      } else {
        waited_for_[tid] = place;
      }
    }
  }

  void changed(pid_t tid, int status) {
    const auto waited = waited_for_.find(tid);
    if (waited != waited_for_.end()) {
      Capture& capture = captures_[waited->second];
      waited_for_.erase(waited);
      if (WIFSTOPPED(status)) {
        copy(capture);
      } else {
        capture.missing = "it has ended";
      }
    }
    if (!WIFSTOPPED(status)) return;
    // An event stop was caused by this process. Any other stop is a pending signal, which is delivered now.
    const long signal = status >> 16 != 0 ? 0 : WSTOPSIG(status);
    ::ptrace(PTRACE_DETACH, tid, nullptr, signal);
  }

  void copy(Capture& capture) const {
    std::optional<Registers> registers = read_registers(capture.facts.tid);
    if (!registers) {
      capture.missing = "titan-stacks does not support the registers of this machine";
      return;
    }
    capture.registers = *std::move(registers);
    capture.stack = copy_stack(capture.facts.tid, capture.registers.stack_pointer);
  }

  // Waits for a change; returns true if there was none for a while.
  bool nobody_for_a_while() const {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    const int64_t nanos = std::clamp<int64_t>(deadline_ - shim::monotonic_nanos(), 0, kLookAgainNanos);
    const timespec wait{nanos / 1'000'000'000, nanos % 1'000'000'000};
    return ::sigtimedwait(&child, nullptr, &wait) < 0 && errno == EAGAIN;
  }

  bool all_in_the_kernel() const {
    return std::ranges::all_of(waited_for_,
                               [this](const auto& entry) { return facts_of(pid_, entry.first).state == 'D'; });
  }

  void did_not_stop(Capture& capture) const {
    const char state = facts_of(pid_, capture.facts.tid).state;
    if (state != '?') capture.facts.state = state;
    capture.missing = state == 'D' ? "it waits uninterruptibly in the kernel" : "it did not stop in time";
  }

  const pid_t pid_;
  const int64_t deadline_;
  std::vector<Capture> captures_;
  std::map<pid_t, size_t> waited_for_;  // Indices in captures_.
};

}  // namespace

std::vector<Capture> capture_threads(pid_t pid, int64_t deadline_nanos) {
  return Threads(pid, deadline_nanos).capture();
}

}  // namespace titan::stacks
