#pragma once

// Describes what the daemon asks of a shim: spec.json, and the unix user as whom ranks run.

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/node/shim/control_group.h"

namespace titan::shim {

// A unix user, as whom a shim that is root runs ranks.
struct RankUser {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // All of theirs.
  std::string home;
};

nlohmann::json to_json(const RankUser& user);
// Throws nlohmann::json::exception.
RankUser user_from_json(const nlohmann::json& from);

// Errors: NotFound, and those of the user database.
absl::StatusOr<RankUser> find_user(const std::string& name);

// What the daemon asks of a shim: spec.json in the run folder of one attempt on one node. The run folder is the folder
// of this file; it holds launch.json before the shim starts.
struct Spec {
  std::string job_uid;
  int attempt = 1;
  bool leader = false;                // Host the store: bind its port now and let rank 0 inherit the listening socket.
  std::string address = "127.0.0.1";  // Where the store listens.
  bool alone = false;                 // All ranks of the attempt are here: they reach the store at `address`.
  std::string rank_binary;
  std::vector<int> ranks;  // Of this node, in local order.
  int world = 1;
  std::map<std::string, std::string> environment;  // Added to this process's own for the ranks.
  std::optional<RankUser> user;                    // Whom the ranks run as; none: as this process.
  ControlGroup group;                              // They live in; none: where this process does.
  std::string rank_folder;                         // Theirs to write, with launch.json; empty: the run folder.
  double orphan_timeout_seconds = 600;             // Stop and save when no daemon has renewed the lease for so long.
  double orphan_grace_seconds = 60;                // Then SIGKILL after this.
  int64_t log_max_bytes = 256 << 20;               // Kept of each rank's log.
};

nlohmann::json to_json(const Spec& spec);
// Errors: InvalidArgument naming the member.
absl::StatusOr<Spec> spec_from_json(const nlohmann::json& from);

// Entry of every rank's environment that names its run folder; what its children inherit tells whose they are.
inline constexpr char kRunFolderVariable[] = "TITAN_RUN_FOLDER";

}  // namespace titan::shim
