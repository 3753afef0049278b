#include "controller/api/caller.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace titan::api {
namespace {

constexpr char kUserKey[] = "titan-user";
constexpr size_t kLongestName = 64;
constexpr size_t kLongestAddress = 128;

bool is_in_name(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '@' || c == '+' || c == '-'; }

}  // namespace

std::string user_actor(const std::string& name) {
  const bool valid = !name.empty() && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), is_in_name);
  return valid ? absl::StrCat("user:", name) : "";
}

std::string peer_actor(const std::string& peer) {
  std::string address = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  const bool has_port = absl::StartsWith(address, "ipv4:") || absl::StartsWith(address, "ipv6:");
  if (has_port) address = address.substr(5, address.rfind(':') - 5);
  std::replace_if(
      address.begin(), address.end(), [](char c) { return !absl::ascii_isgraph(c); }, '_');
  return absl::StrCat("peer:", address.substr(0, kLongestAddress));
}

std::string actor_of(const grpc::ServerContextBase& context) {
  const auto claimed = context.client_metadata().find(kUserKey);
  if (claimed != context.client_metadata().end()) {
    std::string user = user_actor({claimed->second.data(), claimed->second.size()});
    if (!user.empty()) return user;
  }
  return peer_actor(context.peer());
}

}  // namespace titan::api
