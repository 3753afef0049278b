#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::shim {

// A unix user, as whom a shim that is root runs ranks.
struct RankUser {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // All of theirs.
  std::string home;
};

nlohmann::json to_json(const RankUser& user);
// Throws nlohmann::json::exception.
RankUser user_from_json(const nlohmann::json& from);

// Errors: NotFound, and those of the user database.
absl::StatusOr<RankUser> find_user(const std::string& name);

}  // namespace titan::shim
