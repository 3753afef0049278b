#include "worker/node/shim/process.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"

namespace titan::shim {
namespace {

struct Stat {
  char state = 0;  // 0: no such process.
  int64_t ticks = 0;
};

Stat parse_stat(const absl::StatusOr<std::string>& text) {
  Stat result;
  if (!text.ok()) return result;
  // The name in parentheses may contain anything, including parentheses and spaces.
  size_t at = text->rfind(')');
  if (at == std::string::npos || at + 2 >= text->size()) return result;
  result.state = (*text)[at + 2];
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text->find(' ', at + 1);
  if (at != std::string::npos) result.ticks = std::atoll(text->c_str() + at + 1);
  return result;
}

absl::StatusOr<std::string> stat_text(pid_t pid) { return host::read_file(absl::StrCat("/proc/", pid, "/stat")); }

int64_t nanos(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

int64_t start_ticks(pid_t pid) { return parse_stat(stat_text(pid)).ticks; }

absl::StatusOr<char> process_state(pid_t pid, int64_t ticks) {
  if (pid <= 0) return '\0';
  const absl::StatusOr<std::string> text = stat_text(pid);
  // The process may end between opening and reading the file; then only the kernel knows.
  if (!text.ok() && (absl::IsNotFound(text.status()) || (::kill(pid, 0) != 0 && errno == ESRCH))) return '\0';
  if (!text.ok()) return text.status();
  const Stat stat = parse_stat(text);
  return stat.state == 'Z' || stat.state == 'X' || stat.ticks != ticks ? '\0' : stat.state;
}

bool alive(pid_t pid, int64_t ticks) {
  const absl::StatusOr<char> state = process_state(pid, ticks);
  return !state.ok() || *state != 0;
}

const std::string& boot_id() {
  static const std::string id = [] {
    const absl::StatusOr<std::string> text = host::read_file("/proc/sys/kernel/random/boot_id");
    return text.ok() ? text->substr(0, text->find('\n')) : std::string();
  }();
  return id;
}

int64_t monotonic_nanos() { return nanos(CLOCK_MONOTONIC); }
int64_t unix_nanos() { return nanos(CLOCK_REALTIME); }

absl::StatusOr<int> kill_marked(const std::string& entry) {
  DIR* const folder = ::opendir("/proc");
  if (folder == nullptr) return errno_status(errno, "list /proc");
  const std::string needle = absl::StrCat(std::string(1, '\0'), entry, std::string(1, '\0'));
  int killed = 0;
  absl::Status blind;
  while (const dirent* const item = ::readdir(folder)) {
    const pid_t pid = std::atoi(item->d_name);
    if (pid <= 0 || pid == ::getpid()) continue;
    const absl::StatusOr<std::string> environment = host::read_file(absl::StrCat("/proc/", item->d_name, "/environ"));
    if (absl::IsResourceExhausted(environment.status())) blind = environment.status();
    if (!environment.ok()) continue;  // The process is gone or belongs to another user.
    if (absl::StrCat(std::string(1, '\0'), *environment).find(needle) == std::string::npos) continue;
    if (::kill(pid, SIGKILL) == 0) ++killed;
  }
  ::closedir(folder);
  if (!blind.ok()) return blind;
  return killed;
}

}  // namespace titan::shim
