#pragma once

// What the run folder of an attempt says of its shim and ranks. Reads files and /proc: not on the loop.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/rank_protocol/launch.h"
#include "nlohmann/json.hpp"
#include "worker/node/core/values.h"
#include "worker/node/shim/exit_log.h"

namespace titan::daemon {

// What an error says, fit for a message; empty when there is none.
std::string text_of(const absl::Status& status);

// The shim's own description of itself (docs/worker-protocols.md, "Shim protocol").
node::ShimStatus status_from_json(const nlohmann::json& from);

// What the shim wrote last; nothing when none ever began, or a power failure left nothing. Errors: those of reading.
absl::StatusOr<std::optional<node::ShimStatus>> last_status(const std::string& run_folder);

// Is there a shim in this run folder: the process that shim.json names, or one that holds the lock? Errors: the disk
// does not say, and it may live as well as not.
absl::StatusOr<bool> shim_lives(const std::string& run_folder);

// All of node::ShimFound but the link: kSilent for a shim that lives.
node::ShimFound find_shim(const std::string& run_folder);
// The control group that its shim made for the ranks; empty: none.
std::string group_of(const std::string& run_folder);
// `rank_folder`: where the ranks write.
node::RanksSeen check_ranks(const node::CheckRanks& look, const std::string& run_folder,
                            const std::string& rank_folder);

// The end of a failed rank's log (common/rank_protocol/failed_ranks.h); empty when there is none.
node::LogTailRead log_tail(const std::string& run_folder, int rank);

node::LaunchFacts facts_of(const rank_protocol::Launch& launch, const std::string& launch_file);
node::LaunchFacts read_facts(const std::string& run_folder);

// `damage`: set when the file is there and not whole.
std::map<int, node::SpoolTail::Place> load_places(const std::string& run_folder, std::string* damage = nullptr);
absl::Status save_places(const std::string& run_folder, const std::map<int, node::SpoolTail::Place>& places);

// A record of the state folder as the core wants it at the start.
node::Found look_at(const node::AttemptRecord& record, const std::string& run_folder);

}  // namespace titan::daemon
