#include "worker/node/daemon/rank_user.h"

#include "absl/strings/str_cat.h"

namespace titan::daemon {
namespace {

constexpr char kForAll[] = "start titan-worker with --rank-user NAME, which runs all ranks as that user";

}  // namespace

RanksAs ranks_as(const node::AttemptRecord& record, const std::string& everybody, uid_t own) {
  if (own != 0) return {};
  const std::string& name = everybody.empty() ? record.run_as : everybody;
  if (name.empty() && !record.run_as_known) return {};  // Accepted before there were users: an upgrade ends no job.
  if (name.empty()) {
    return {{"NO_SUCH_USER", absl::StrCat("this worker is root, and nothing proves which user submitted the job (its "
                                          "controller is open, by --insecure): submit it anew from "
                                          "the controller's machine or with a token, or ",
                                          kForAll)},
            {}};
  }
  absl::StatusOr<shim::RankUser> user = shim::find_user(name);
  if (!user.ok()) {
    return {{"NO_SUCH_USER", absl::StrCat(user.status().message(), ", whose job it is: make that user (useradd ", name,
                                          "), or ", kForAll)},
            {}};
  }
  if (user->uid != 0) return {{}, *std::move(user)};
  if (!everybody.empty() || record.run_as_local) return {};
  return {{"ROOT_NOT_ALLOWED", absl::StrCat("a token or certificate named ", name,
                                            " does not make its ranks root: give "
                                            "its owner one with the name of their unix user")},
          {}};
}

}  // namespace titan::daemon
