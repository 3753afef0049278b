#include "worker/node/shim/rank_user.h"

#include <grp.h>
#include <pwd.h>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::shim {
namespace {

using nlohmann::json;
constexpr size_t kEntryBytes = 64 << 10;
constexpr int kMostGroups = 65536;  // The kernel's NGROUPS_MAX.

std::vector<gid_t> groups_of(const std::string& name, gid_t first) {
  int count = 64;
  std::vector<gid_t> groups(static_cast<size_t>(count));
  while (::getgrouplist(name.c_str(), first, groups.data(), &count) < 0 && count <= kMostGroups) {
    groups.resize(static_cast<size_t>(count));
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

}  // namespace

json to_json(const RankUser& user) {
  return {{"name", user.name}, {"uid", user.uid}, {"gid", user.gid}, {"groups", user.groups}, {"home", user.home}};
}

RankUser user_from_json(const json& from) {
  return {from.at("name").get<std::string>(), from.at("uid").get<uid_t>(), from.at("gid").get<gid_t>(),
          from.at("groups").get<std::vector<gid_t>>(), from.at("home").get<std::string>()};
}

absl::StatusOr<RankUser> find_user(const std::string& name) {
  passwd entry{};
  passwd* found = nullptr;
  std::string text(kEntryBytes, '\0');
  const int failed = ::getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &found);
  if (failed != 0) return errno_status(failed, absl::StrCat("look up user ", name));
  if (found == nullptr) return absl::NotFoundError(absl::StrCat("this machine has no user ", name));
  return RankUser{name, found->pw_uid, found->pw_gid, groups_of(name, found->pw_gid), found->pw_dir};
}

}  // namespace titan::shim
