#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "worker/node/core/attempt_record.h"
#include "worker/node/shim/rank_user.h"

namespace titan::daemon {

struct RanksAs {
  node::Refusal refusal;
  std::optional<shim::RankUser> user;  // None: the worker's own.
};

// As whom an attempt's ranks run. A worker that is not root runs all as itself. One that is runs them as the user who
// has submitted the job, or all as `everybody` (--rank-user) when that is given; and as root only for a root whom the
// kernel of the controller's machine has seen. Jobs of an older version, which says nothing of users, run as before.
// Asks the user database, which may be slow: not on the loop. Refuses: NO_SUCH_USER, ROOT_NOT_ALLOWED.
RanksAs ranks_as(const node::AttemptRecord& record, const std::string& everybody, uid_t own);

}  // namespace titan::daemon
