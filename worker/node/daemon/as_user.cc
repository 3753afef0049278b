#include "worker/node/daemon/as_user.h"

#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace titan::daemon {
namespace {

void set_groups(const std::vector<gid_t>& groups) {
  if (::syscall(SYS_setgroups, groups.size(), groups.data()) == 0) return;
  std::perror("titan-worker: cannot work as another user");
  std::abort();
}

// Both calls give the old value whether they worked or not; a second one tells.
void set_ids(uid_t uid, gid_t gid) {
  ::syscall(SYS_setfsgid, gid);
  ::syscall(SYS_setfsuid, uid);
  const bool is_so =
      static_cast<gid_t>(::syscall(SYS_setfsgid, -1)) == gid && static_cast<uid_t>(::syscall(SYS_setfsuid, -1)) == uid;
  if (is_so) return;
  std::fputs("titan-worker: cannot work as another user\n", stderr);
  std::abort();
}

}  // namespace

AsUser::AsUser(const std::optional<shim::RankUser>& user) : changed_(user.has_value()) {
  if (!changed_) return;
  groups_.resize(static_cast<size_t>(::getgroups(0, nullptr)));
  groups_.resize(static_cast<size_t>(::getgroups(static_cast<int>(groups_.size()), groups_.data())));
  uid_ = ::geteuid();
  gid_ = ::getegid();
  set_groups(user->groups);
  set_ids(user->uid, user->gid);
}

AsUser::~AsUser() {
  if (!changed_) return;
  set_ids(uid_, gid_);
  set_groups(groups_);
}

}  // namespace titan::daemon
