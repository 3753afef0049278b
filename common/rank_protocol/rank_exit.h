#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::rank_protocol {

// How a rank ended. Its shim records it, its node reports it, and the controller stores and shows it.
struct RankExit {
  int rank = 0;
  int exit_code = 0;  // -1 when a signal ended it.
  int signal = 0;     // 0: none.
  bool out_of_memory = false;
  int64_t memory_limit_bytes = 0;  // Limit shared by its attempt's ranks on the node, when it was exceeded; 0: no such
                                   // limit.
  int64_t time_ns = 0;             // Unix time in nanoseconds by the node's clock; 0: not known.
  std::string message;             // Message of the last error event, or else the last log line.
  std::string stop_reason;         // Why its node ended it; empty: it ended by itself.

  // Identifies the process. Only the shim's record has this.
  int pid = 0;
  int64_t start_ticks = 0;

  // The controller adds these.
  std::string node;
  int report = 0;  // Number of the attempt's exit report that contained it, from 1, since nodes' clocks differ. 0: not
                   // known.
  int64_t kept_log_bytes = 0;  // Size of the end of its log, kept as a separate record; 0: not kept.

  bool operator==(const RankExit&) const = default;
};

// Returns the shim's JSON: a line of exits.jsonl, or an exit in its events and in shim.json. Cuts the message to 2 KiB.
nlohmann::json exit_to_json(const RankExit& exit);
// Ignores unknown members; older shims leave some out. Errors: DataLoss for a missing or wrong member.
absl::StatusOr<RankExit> exit_from_json(const nlohmann::json& from);

}  // namespace titan::rank_protocol
