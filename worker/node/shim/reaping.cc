#include "worker/node/shim/reaping.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/rank_protocol/launch.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/say.h"

namespace titan::shim {
namespace {

constexpr int kStrayTimeoutMilliseconds = 2000;
constexpr int kStrayPauseMilliseconds = 1;

}  // namespace

std::optional<EndedChild> reap_child(std::vector<Rank>& ranks) {
  for (;;) {
    siginfo_t ended{};
    if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return std::nullopt;
    const auto rank = std::find_if(ranks.begin(), ranks.end(), [&](const Rank& candidate) {
      return candidate.running && candidate.process.pid == ended.si_pid;
    });
    // Ends its children in the same group. While it is a zombie, the group's number is not reused.
    if (rank != ranks.end()) ::kill(-ended.si_pid, SIGKILL);
    int wait_status = 0;
    if (::waitpid(ended.si_pid, &wait_status, 0) != ended.si_pid) continue;
    return EndedChild{ended.si_pid, wait_status, rank != ranks.end() ? &*rank : nullptr};
  }
}

rank_protocol::RankExit exit_of(const Rank& rank, int wait_status, const ExitContext& context) {
  rank_protocol::RankExit record;
  record.rank = rank.rank;
  record.pid = rank.process.pid;
  record.start_ticks = rank.process.start_ticks;
  record.time_ns = unix_nanos();
  if (WIFSIGNALED(wait_status)) {
    record.exit_code = -1;
    record.signal = WTERMSIG(wait_status);
  } else {
    record.exit_code = WEXITSTATUS(wait_status);
  }
  const bool took_kill = record.signal == SIGKILL && take_kill(context.kills);
  record.out_of_memory = record.exit_code == rank_protocol::kExitOutOfMemory ||
                         (took_kill && !context.stopping.killed);  // Otherwise the kill may be the shim's.
  if (record.out_of_memory) record.memory_limit_bytes = context.group.limit_bytes;
  record.stop_reason = context.stopping.reason;
  const std::string last_line = context.logs.finish(rank.rank);
  record.message = last_error(context.folder, rank.rank);
  if (record.message.empty()) record.message = last_line;
  return record;
}

absl::Status append_exit(ExitRecords& records, Rank& rank) {
  const absl::Status appended = records.log.append(*rank.exit);
  rank.unrecorded = !appended.ok();
  if (!appended.ok()) {
    say(appended.ToString());
    records.retry_at = monotonic_nanos() + kSecond;
  }
  return appended;
}

void retry_records(ExitRecords& records, std::vector<Rank>& ranks) {
  records.retry_at = 0;
  for (Rank& rank : ranks) {
    if (!rank.unrecorded) continue;
    rank.unrecorded = !records.log.append(*rank.exit).ok();
    if (rank.unrecorded) records.retry_at = monotonic_nanos() + kSecond;
  }
}

bool any_unrecorded(const std::vector<Rank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.unrecorded; });
}

void kill_strays(const ControlGroup& group) {
  const int64_t give_up = monotonic_nanos() + kStrayTimeoutMilliseconds * kMilli;
  for (;;) {
    const absl::StatusOr<std::string> children =
        host::read_file(absl::StrCat("/proc/self/task/", ::getpid(), "/children"));
    const bool in_group = group && kill_group(group.folder) > 0;
    if ((!children.ok() || children->empty()) && !in_group) return;
    for (size_t at = 0; children.ok() && at < children->size(); at = children->find(' ', at) + 1) {
      ::kill(std::atoi(children->c_str() + at), SIGKILL);
      if (children->find(' ', at) == std::string::npos) break;
    }
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (monotonic_nanos() >= give_up)
      return say(absl::StrCat("processes that survive SIGKILL are left behind: ", children.value_or("")));
    ::poll(nullptr, 0, kStrayPauseMilliseconds);
  }
}

}  // namespace titan::shim
