#include "worker/node/daemon/rank_user.h"

#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace titan::daemon {
namespace {

constexpr char kForAll[] = "start titan-worker with --rank-user NAME, which runs all ranks as that user";

}  // namespace

RanksAs ranks_as(const node::AttemptRecord& record, const std::string& everybody, uid_t own) {
  if (own != 0) return {};
  const std::string& name = everybody.empty() ? record.run_as : everybody;
  if (name.empty()) {
    return {{"NO_SUCH_USER", absl::StrCat("this worker is root, and the submitting user is not authenticated (its "
                                          "controller runs with --insecure): submit it again from "
                                          "the controller's machine or with a token, or ",
                                          kForAll)},
            {}};
  }
  absl::StatusOr<shim::RankUser> user = shim::find_user(name);
  if (!user.ok()) {
    return {{"NO_SUCH_USER", absl::StrCat(user.status().message(), ", the submitting user: create that user (useradd ",
                                          name, "), or ", kForAll)},
            {}};
  }
  if (user->uid != 0) return {{}, *std::move(user)};
  if (!everybody.empty() || record.run_as_local) return {};
  return {{"ROOT_NOT_ALLOWED", absl::StrCat("a token or certificate named ", name,
                                            " cannot run ranks as root: give "
                                            "its owner one with the name of their unix user")},
          {}};
}

namespace {

void set_groups(const std::vector<gid_t>& groups) {
  if (::syscall(SYS_setgroups, groups.size(), groups.data()) == 0) return;
  std::perror("titan-worker: cannot work as another user");
  std::abort();
}

// Both system calls return the previous value on success and on failure, so a second call verifies the result.
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
