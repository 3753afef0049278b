#include "controller/auth/permissions.h"

#include <algorithm>

namespace titan::auth {

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
