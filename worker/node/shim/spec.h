#pragma once

// The daemon's request to a shim: spec.json, and the Unix user that ranks run as.

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/node/shim/control_group.h"

namespace titan::shim {

// The Unix user as which a root shim runs ranks.
struct RankUser {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // All groups of the user.
  std::string home;
};

nlohmann::json to_json(const RankUser& user);
// Throws nlohmann::json::exception.
RankUser user_from_json(const nlohmann::json& from);

// Finds a user by name. Errors: NotFound, and those of the user database.
absl::StatusOr<RankUser> find_user(const std::string& name);

// The daemon's request to a shim, stored as spec.json in the run folder of one attempt on one node. The folder must
// contain launch.json before the shim starts.
struct Spec {
  std::string job_uid;
  int attempt = 1;
  bool leader = false;                // Host the store: bind its port now; rank 0 inherits the listening socket.
  std::string address = "127.0.0.1";  // Where the store listens.
  bool alone = false;                 // All ranks of the attempt are on this node and reach the store at `address`.
  std::string rank_binary;
  std::vector<int> ranks;  // Ranks on this node, in local order.
  int world = 1;
  std::map<std::string, std::string> environment;  // Added to this process's environment for the ranks.
  std::optional<RankUser> user;                    // User that the ranks run as. None: this process's.
  ControlGroup group;                              // Control group of the ranks. None: this process's.
  std::string rank_folder;              // Folder that the ranks write to, with launch.json. Empty: the run folder.
  double orphan_timeout_seconds = 600;  // Save and stop when no daemon has renewed the lease for this time.
  double orphan_grace_seconds = 60;     // Then SIGKILL after this time.
  int64_t log_max_bytes = 256 << 20;    // Bytes that are kept of each rank's log.
};

nlohmann::json to_json(const Spec& spec);
// Parses and checks a spec. Errors: InvalidArgument with the member's name.
absl::StatusOr<Spec> spec_from_json(const nlohmann::json& from);

// Variable in every rank's environment that names its run folder. Child processes inherit it, so it identifies them.
inline constexpr char kRunFolderVariable[] = "TITAN_RUN_FOLDER";

}  // namespace titan::shim
