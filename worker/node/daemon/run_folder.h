#pragma once

// Reads the state of the shim and ranks from an attempt's run folder. Reads files and /proc: do not call on the loop.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/rank_protocol/launch.h"
#include "nlohmann/json.hpp"
#include "worker/node/core/values.h"
#include "worker/node/shim/exit_log.h"

namespace titan::daemon {

// Returns the message of `status` as valid UTF-8; empty if OK.
std::string text_of(const absl::Status& status);

// Decodes the shim's description of itself (docs/worker-protocols.md, "Shim protocol").
node::ShimStatus status_from_json(const nlohmann::json& from);

// Returns the last status that the shim wrote; none if no shim started, or a power failure lost the file. Errors: those
// of reading.
absl::StatusOr<std::optional<node::ShimStatus>> last_status(const std::string& run_folder);

// Returns whether a shim lives in this run folder: the process that shim.json names, or a process that holds the lock.
// Errors: this cannot be determined, so the shim may or may not be alive.
absl::StatusOr<bool> shim_lives(const std::string& run_folder);

// Looks for the shim, without connecting to it: a living shim gives kSilent.
node::ShimLookup find_shim(const std::string& run_folder);
// Returns the folder of the control group that the shim created for the ranks; empty if there is none.
std::string group_of(const std::string& run_folder);
// Carries out node::CheckRanks. `rank_folder`: where the ranks write.
node::RanksChecked check_ranks(const node::CheckRanks& look, const std::string& run_folder,
                               const std::string& rank_folder);

// Reads the end of a failed rank's log (common/rank_protocol/failed_ranks.h). Empty if the rank has no log.
node::LogTailRead log_tail(const std::string& run_folder, int rank);

// Returns the facts of a launch; start_unix_nanos is the modification time of `launch_file`.
node::LaunchFacts facts_of(const rank_protocol::Launch& launch, const std::string& launch_file);
node::LaunchFacts read_facts(const std::string& run_folder);

// Reads the saved positions. `damage`: set when the file exists but is damaged.
std::map<int, node::SpoolTail::Place> load_places(const std::string& run_folder, std::string* damage = nullptr);
absl::Status save_places(const std::string& run_folder, const std::map<int, node::SpoolTail::Place>& places);

// Reads what the core needs to know at startup about a recorded attempt.
node::RecoveredAttempt look_at(const node::AttemptRecord& record, const std::string& run_folder);

}  // namespace titan::daemon
