#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"
#include "worker/node/shim/spec.h"

namespace titan::shim {

// What would end a shim, and with it its ranks, without a word; a write beyond the limit on files fails instead. Ranks
// begin with none of it ignored.
inline constexpr int kIgnoredByShim[] = {SIGPIPE, SIGINT, SIGALRM, SIGVTALRM, SIGPROF, SIGXFSZ};

struct RankCommand {
  std::string binary;
  std::vector<std::string> arguments;              // Without the program's name.
  std::map<std::string, std::string> environment;  // Added to this process's own.
  int listen_fd = -1;                              // Inherited under the same number.
  int group_fd = -1;                               // See group_entrance(); -1: it stays in this process's group.
  std::string folder;                              // It works there; empty: where this process does.
  std::optional<RankUser> user;                    // It runs as; none: as this process.
};

struct RankProcess {
  pid_t pid = 0;
  int64_t start_ticks = 0;
  host::Descriptor output;  // Read end of stdout and stderr, non-blocking.
};

// Starts a rank: leader of its own process group, killed by the kernel when this thread's process dies, no descriptor
// inherited but those named. As another user it has nothing of this one's, and gets nothing back by a
// program that is setuid. Returns when exec has happened. Call it on the main thread: the death signal is tied to
// the calling thread. Errors: those of fork and exec, naming the binary.
absl::StatusOr<RankProcess> start_rank(const RankCommand& command);

// Makes the kernel's out-of-memory killer choose others before this process, when that is allowed. Ranks are put back
// to normal.
void protect_from_oom_killer();

}  // namespace titan::shim
