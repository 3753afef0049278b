#include "controller/auth/caller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace titan::auth {
namespace {

constexpr size_t kMaxNameLength = 64;
constexpr size_t kMaxAddressLength = 128;

bool is_in_name(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '@' || c == '+' || c == '-'; }

}  // namespace

absl::string_view name(Role role) {
  switch (role) {
    case Role::kNone:
      return "none";
    case Role::kViewer:
      return "viewer";
    case Role::kOperator:
      return "operator";
    case Role::kAdmin:
      return "admin";
  }
  return "none";
}

bool Caller::sees(absl::string_view project) const {
  return std::any_of(projects.begin(), projects.end(),
                     [project](const std::string& own) { return own == kAllProjects || own == project; });
}

bool Caller::sees_all() const { return std::find(projects.begin(), projects.end(), kAllProjects) != projects.end(); }

Caller admin(std::string actor) { return {std::move(actor), Role::kAdmin, {kAllProjects}, kAllProjects}; }

std::string user_actor(const std::string& name) {
  const bool valid =
      !name.empty() && name.size() <= kMaxNameLength && std::all_of(name.begin(), name.end(), is_in_name);
  return valid ? absl::StrCat("user:", name) : "";
}

std::string peer_address(const std::string& peer) {
  std::string address = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  const bool has_port = absl::StartsWith(address, "ipv4:") || absl::StartsWith(address, "ipv6:");
  if (has_port) address = address.substr(5, address.rfind(':') - 5);
  std::replace_if(
      address.begin(), address.end(), [](char c) { return !absl::ascii_isgraph(c); }, '_');
  return address.substr(0, kMaxAddressLength);
}

std::string peer_actor(const std::string& peer) { return absl::StrCat("peer:", peer_address(peer)); }

absl::string_view project_of(absl::string_view job) {
  if (!absl::ConsumePrefix(&job, "projects/")) return "";
  const size_t end = job.find("/jobs/");
  return end == absl::string_view::npos ? "" : job.substr(0, end);
}

const std::vector<Permission>& permissions() {
  static const auto* const all = new std::vector<Permission>{
      {"JobService.CreateJob", Need::kOperate, true},
      {"JobService.GetJob", Need::kRead},
      {"JobService.ListJobs", Need::kRead},
      {"JobService.UpdateJob", Need::kOperate, true},
      {"JobService.CancelJob", Need::kOperate, true},
      {"JobService.DeleteJob", Need::kOperate, true},
      {"JobService.CheckpointJob", Need::kOperate, true},
      {"JobService.ProfileJob", Need::kOperate, true},
      {"JobService.WatchJobs", Need::kRead},
      {"JobService.ListEvents", Need::kRead},
      {"JobService.TailLogs", Need::kRead},
      {"JobService.GetDiagnosis", Need::kRead},
      {"NodeService.GetNode", Need::kRead},
      {"NodeService.ListNodes", Need::kRead},
      {"NodeService.CordonNode", Need::kOperateCluster, true},
      {"NodeService.UncordonNode", Need::kOperateCluster, true},
      {"NodeService.DrainNode", Need::kOperateCluster, true},
      {"NodeService.DeleteNode", Need::kOperateCluster, true},
      {"NodeService.StopUnknown", Need::kOperateCluster, true},
      {"ClusterService.GetCluster", Need::kRead},
      {"ClusterService.Backup", Need::kAdmin, true},
      {"ClusterService.GetDiagnostics", Need::kAdmin},
      {"WorkerService.Session", Need::kSession},
      {"AuthService.CreateToken", Need::kAdmin, true},
      {"AuthService.ListTokens", Need::kAdmin},
      {"AuthService.RevokeToken", Need::kAdmin, true},
  };
  return *all;
}

std::optional<Permission> permission(absl::string_view method) {
  const std::vector<Permission>& all = permissions();
  const auto found =
      std::find_if(all.begin(), all.end(), [method](const Permission& one) { return one.method == method; });
  if (found == all.end()) return std::nullopt;
  return *found;
}

}  // namespace titan::auth
