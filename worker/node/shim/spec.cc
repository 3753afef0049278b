#include "worker/node/shim/spec.h"

#include <grp.h>
#include <pwd.h>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::shim {
namespace {

using nlohmann::json;

constexpr size_t kEntryBytes = 64 << 10;
constexpr int kMaxGroups = 65536;  // The kernel's NGROUPS_MAX.

std::vector<gid_t> groups_of(const std::string& name, gid_t first) {
  int count = 64;
  std::vector<gid_t> groups(static_cast<size_t>(count));
  while (::getgrouplist(name.c_str(), first, groups.data(), &count) < 0 && count <= kMaxGroups) {
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

json to_json(const Spec& spec) {
  json text = {{"job_uid", spec.job_uid},
               {"attempt", spec.attempt},
               {"leader", spec.leader},
               {"address", spec.address},
               {"alone", spec.alone},
               {"rank_binary", spec.rank_binary},
               {"ranks", spec.ranks},
               {"world", spec.world},
               {"environment", spec.environment},
               {"orphan_timeout_seconds", spec.orphan_timeout_seconds},
               {"orphan_grace_seconds", spec.orphan_grace_seconds},
               {"log_max_bytes", spec.log_max_bytes}};
  if (spec.group) text["group"] = to_json(spec.group);
  if (spec.user) text["user"] = to_json(*spec.user);
  if (!spec.rank_folder.empty()) text["rank_folder"] = spec.rank_folder;
  return text;
}

absl::StatusOr<Spec> spec_from_json(const json& from) {
  Spec spec;
  try {
    spec.job_uid = from.at("job_uid").get<std::string>();
    spec.attempt = from.at("attempt").get<int>();
    spec.leader = from.at("leader").get<bool>();
    spec.address = from.value("address", spec.address);
    spec.alone = from.value("alone", spec.alone);
    spec.rank_binary = from.at("rank_binary").get<std::string>();
    spec.ranks = from.at("ranks").get<std::vector<int>>();
    spec.world = from.at("world").get<int>();
    spec.environment = from.value("environment", spec.environment);
    spec.orphan_timeout_seconds = from.value("orphan_timeout_seconds", spec.orphan_timeout_seconds);
    spec.orphan_grace_seconds = from.value("orphan_grace_seconds", spec.orphan_grace_seconds);
    spec.log_max_bytes = from.value("log_max_bytes", spec.log_max_bytes);
    spec.rank_folder = from.value("rank_folder", "");
    if (from.contains("group")) spec.group = group_from_json(from["group"]);
    if (from.contains("user")) spec.user = user_from_json(from["user"]);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("shim spec: ", error.what()));
  }
  if (spec.ranks.empty()) return absl::InvalidArgumentError("shim spec: ranks is empty");
  constexpr double kMaxSeconds = 1e9;  // Seconds; adding it to a time in nanoseconds must not overflow.
  if (!(spec.orphan_timeout_seconds > 0 && spec.orphan_timeout_seconds <= kMaxSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("shim spec: orphan_timeout_seconds is ", spec.orphan_timeout_seconds,
                                                   ", expected more than 0 and at most ", kMaxSeconds));
  }
  if (!(spec.orphan_grace_seconds >= 0 && spec.orphan_grace_seconds <= kMaxSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("shim spec: orphan_grace_seconds is ", spec.orphan_grace_seconds,
                                                   ", expected 0 to ", kMaxSeconds));
  }
  return spec;
}

}  // namespace titan::shim
