#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "titan/v1/worker.pb.h"
#include "worker/node/core/values.h"
#include "worker/node/daemon/granted_folders.h"
#include "worker/node/daemon/state_folder.h"
#include "worker/node/shim/spec.h"

namespace titan::daemon {

using node::Refusal;

// Does the file work of preparing and starting an attempt, which may be slow on shared storage: do not call it on the
// loop.

struct Prepared {
  Refusal refusal;
  std::string folder_id;  // Id of the dump folder, on the leader.
  node::LaunchFacts facts;
};

// Creates launch.json, spec.json and empty spools in the run folder; on the leader also the dump folder with its id and
// the token. Work on the dump folder and on the ranks' files is done as spec.user, if set. A dump folder with a known
// id is never created: if it is missing, the leader refuses. `host`: address at which ranks of other nodes reach this
// node, if the launch does not name it.
Prepared prepare_files(const AttemptRecord& record, const std::string& run_folder, const std::string& launch_json,
                       shim::Spec spec, const std::string& visible_devices, const std::string& host);

// Calls prepare_files() as the user that the ranks run as, for folders that are granted; see ranks_as() and
// check_folders().
Prepared prepare_as(const StateFolder& state, const AttemptRecord& record, const std::string& launch_json,
                    shim::Spec spec, const std::string& visible_devices, const std::string& everybody,
                    const Grants& grants, const std::string& host);

// `user`: the user for work in the dump folder. None: the worker's user.

// Removes the token of a preparation that finished too late.
void discard_token(const AttemptRecord& record, const std::optional<shim::RankUser>& user = {});

// Checks whether the leader's token is in the dump folder. Shared storage may show it late, so the check repeats for up
// to `timeout_seconds`.
Refusal check_token(const AttemptRecord& record, const std::string& run_folder, double timeout_seconds,
                    const std::optional<shim::RankUser>& user = {});

}  // namespace titan::daemon
