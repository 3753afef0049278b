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

// Signals that would end a shim and its ranks without a message; with SIGXFSZ ignored, a write beyond the file-size
// limit fails instead. Ranks start with the default handlers.
inline constexpr int kIgnoredByShim[] = {SIGPIPE, SIGINT, SIGALRM, SIGVTALRM, SIGPROF, SIGXFSZ};

struct RankCommand {
  std::string binary;
  std::vector<std::string> arguments;              // Without the program's name.
  std::map<std::string, std::string> environment;  // Added to this process's environment.
  int listen_fd = -1;                              // Inherited under the same number.
  int group_fd = -1;                               // See group_entrance(). -1: the rank stays in this process's group.
  std::string folder;                              // Working folder. Empty: this process's.
  std::optional<RankUser> user;                    // User that the rank runs as. None: this process's.
};

struct RankProcess {
  pid_t pid = 0;
  int64_t start_ticks = 0;
  host::Descriptor output;  // Read end of stdout and stderr, non-blocking.
};

// Starts a rank as leader of a new process group. The kernel kills it when the calling thread ends, so call this on
// the main thread. It inherits no descriptors except the named ones. As another user it keeps no rights of this process
// and cannot regain any through a setuid program. Returns after exec. Errors: those of fork and exec, with the binary's
// name.
absl::StatusOr<RankProcess> start_rank(const RankCommand& command);

// Makes the kernel's out-of-memory killer prefer other processes, if that is allowed. Ranks are reset to normal.
void protect_from_oom_killer();

}  // namespace titan::shim
