#pragma once

// Reaps the children of the shim and records how ranks ended.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/rank_protocol/rank_exit.h"
#include "worker/node/shim/control_group.h"
#include "worker/node/shim/exit_log.h"
#include "worker/node/shim/log_pump.h"
#include "worker/node/shim/memory_kills.h"
#include "worker/node/shim/ranks.h"
#include "worker/node/shim/stopping.h"

namespace titan::shim {

struct EndedChild {
  pid_t pid = 0;
  int wait_status = 0;
  Rank* rank = nullptr;  // Null: the child was not a rank.
};

// Reaps a child that has ended and kills the children of a rank that are in its process group. Returns none if all
// children run.
std::optional<EndedChild> reap_child(std::vector<Rank>& ranks);

// Data for the record of an exit in addition to the rank.
struct ExitContext {
  const Stopping& stopping;
  const ControlGroup& group;
  const std::string& folder;  // Ranks write here.
  MemoryKills& kills;
  LogPump& logs;
};

// Returns the record of how the rank ended. Writes the rest of its log.
rank_protocol::RankExit exit_of(const Rank& rank, int wait_status, const ExitContext& context);

struct ExitRecords {
  ExitLog log;
  int64_t retry_at = 0;  // Monotonic nanoseconds at which unrecorded exits are retried. 0: no exit waits.
};

// Appends the exit of `rank` to the log without syncing it. Errors: those of the disk; the exit is then retried.
absl::Status append_exit(ExitRecords& records, Rank& rank);
void retry_records(ExitRecords& records, std::vector<Rank>& ranks);
bool any_unrecorded(const std::vector<Rank>& ranks);

// Kills the remaining processes of the ranks. Descendants that left their rank's process group became children of this
// process when their parent died. A process that survives SIGKILL, because it waits in the kernel or is traced, is left
// behind: all ranks are gone, and the attempt must end.
void kill_strays(const ControlGroup& group);

}  // namespace titan::shim
