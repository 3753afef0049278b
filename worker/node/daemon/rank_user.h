#pragma once

// Decides which user an attempt's ranks run as, and does file work of one thread as that user.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "worker/node/core/attempt_record.h"
#include "worker/node/shim/spec.h"

namespace titan::daemon {

struct RanksAs {
  node::Refusal refusal;
  std::optional<shim::RankUser> user;  // None: the worker's user.
};

// Determines the user that an attempt's ranks run as. A worker that is not root runs all ranks as itself. A root worker
// runs them as `everybody` (--rank-user) if set, otherwise as the user that submitted the job. That user may be root
// only if the kernel of the controller's machine identified the submitter. Reads the user database, which may be slow:
// do not call on the loop. Refuses with NO_SUCH_USER or ROOT_NOT_ALLOWED.
RanksAs ranks_as(const node::AttemptRecord& record, const std::string& everybody, uid_t own);

// While it lives, file work of this thread is done as that user, so that the kernel checks permissions, links and races
// in the user's folders. Other threads and the process's identity do not change: it sets the file-system identities by
// direct system calls, as file servers do, because the C library's functions would change all threads. Does nothing
// without a user. Aborts the process if the identity cannot be changed or restored.
class AsUser {
 public:
  explicit AsUser(const std::optional<shim::RankUser>& user);
  ~AsUser();
  AsUser(const AsUser&) = delete;
  AsUser& operator=(const AsUser&) = delete;

 private:
  const bool changed_;
  std::vector<gid_t> groups_;  // The previous groups.
  uid_t uid_ = 0;
  gid_t gid_ = 0;
};

}  // namespace titan::daemon
