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

// The file work of preparing and starting, which may be slow on shared storage and so runs beside the loop.

struct Prepared {
  Refusal refusal;
  std::string folder_id;  // Of the dump folder, on the leader.
  node::LaunchFacts facts;
};

// Makes the run folder with launch.json, spec.json and empty spools; on the leader also the dump folder with its id and
// the token. What ranks write, and the dump folder, is the business of spec.user, if there is one. A folder whose id is
// known is never made: without it the leader refuses. `host`: where other nodes' ranks reach this one, for a launch
// that does not say it.
Prepared prepare_files(const AttemptRecord& record, const std::string& run_folder, const std::string& launch_json,
                       shim::Spec spec, const std::string& visible_devices, const std::string& host);

// The same for whoever the ranks run as, in folders that are granted: see ranks_as() and check_folders().
Prepared prepare_as(const StateFolder& state, const AttemptRecord& record, const std::string& launch_json,
                    shim::Spec spec, const std::string& visible_devices, const std::string& everybody,
                    const Grants& grants, const std::string& host);

// `user`: the work in the dump folder is theirs; none: the worker's.

// Removes the token of a preparation that came too late.
void discard_token(const AttemptRecord& record, const std::optional<shim::RankUser>& user = {});

// Is the leader's token in the dump folder? Shared storage may show it late: looks again for up to `patience_seconds`.
Refusal check_token(const AttemptRecord& record, const std::string& run_folder, double patience_seconds,
                    const std::optional<shim::RankUser>& user = {});

}  // namespace titan::daemon
