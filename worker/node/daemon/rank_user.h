#pragma once

// Decides as whom an attempt's ranks run, and does a thread's file work as that user.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "worker/node/core/attempt_record.h"
#include "worker/node/shim/spec.h"

namespace titan::daemon {

struct RanksAs {
  node::Refusal refusal;
  std::optional<shim::RankUser> user;  // None: the worker's own.
};

// As whom an attempt's ranks run. A worker that is not root runs all as itself. One that is runs them as the user who
// has submitted the job, or all as `everybody` (--rank-user) when that is given; and as root only for a root whom the
// kernel of the controller's machine has seen. Asks the user database, which may be slow: not on the loop. Refuses:
// NO_SUCH_USER, ROOT_NOT_ALLOWED.
RanksAs ranks_as(const node::AttemptRecord& record, const std::string& everybody, uid_t own);

// While it lives, this thread's work on files is that user's, so that their permissions, links and races in folders of
// theirs are the kernel's to judge. The other threads and the process's identity stay as they are: these are the
// identities that file systems ask for, set by bare system calls, as file servers do, since the library's calls set all
// threads. Nothing without a user. Ends the process when the identity cannot be changed either way.
class AsUser {
 public:
  explicit AsUser(const std::optional<shim::RankUser>& user);
  ~AsUser();
  AsUser(const AsUser&) = delete;
  AsUser& operator=(const AsUser&) = delete;

 private:
  const bool changed_;
  std::vector<gid_t> groups_;  // Those of before, and
  uid_t uid_ = 0;
  gid_t gid_ = 0;
};

}  // namespace titan::daemon
