#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

#include "worker/node/shim/rank_user.h"

namespace titan::daemon {

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
