#include "controller/api/cluster_service.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "common/status/status.h"
#include "controller/api/admit_first.h"

namespace titan::api {
namespace {

constexpr size_t kChunk = 256 << 10;
constexpr int kDamagedShown = 100;

void add_damaged(const store::Store& store, v1::Cluster& cluster) {
  std::vector<store::Quarantined> all = store.quarantined();
  std::erase_if(all, [](const store::Quarantined& record) { return !record.lost; });
  cluster.set_damaged_records(static_cast<int64_t>(all.size()));
  for (auto record = all.rbegin(); record != all.rend() && cluster.damaged_size() < kDamagedShown; ++record) {
    v1::DamagedRecord& shown = *cluster.add_damaged();
    shown.set_key(record->key);
    shown.set_revision(record->revision);
    shown.set_reason(record->reason);
    shown.mutable_time()->set_seconds(record->time_s);
  }
}

}  // namespace

ClusterService::ClusterService(reconcile::Reconciler& reconciler, const store::Store& store, ClusterOptions options,
                               const auth::Gate& gate)
    : reconciler_(reconciler), store_(store), options_(std::move(options)), gate_(gate) {
  admit_first_and_wait([this](int index, auto* handler) { MarkMethodStreamed(index, handler); }, *this, gate,
                       &ClusterService::GetCluster, &ClusterService::Backup, &ClusterService::GetDiagnostics);
}

grpc::Status ClusterService::GetCluster(grpc::ServerContext* context, const v1::GetClusterRequest*,
                                        v1::Cluster* response) {
  const auto caller = gate_.admit(*context, "ClusterService.GetCluster");
  if (!caller.ok()) return rpc::to_grpc(caller.status());
  response->set_id(options_.id);
  response->set_version(TITAN_VERSION);
  response->mutable_start_time()->set_seconds(absl::ToUnixSeconds(options_.start_time));
  response->set_revision(store_.revision());
  for (const reconcile::NodeView& view : reconciler_.nodes()) {
    response->set_nodes(response->nodes() + 1);
    response->set_ready_nodes(response->ready_nodes() + (view.node.can_take_ranks() ? 1 : 0));
    response->set_unknown_attempts(response->unknown_attempts() + static_cast<int>(view.unknown.size()));
  }
  reconciler_.published().each([response](const reconcile::JobView& view) {
    response->set_jobs(response->jobs() + 1);
    response->set_live_jobs(response->live_jobs() + (job::is_final(view.record->state) ? 0 : 1));
  });
  response->set_default_time_limit_seconds(options_.default_time_limit_seconds);
  add_damaged(store_, *response);
  return grpc::Status::OK;
}

grpc::Status ClusterService::Backup(grpc::ServerContext* context, const v1::BackupRequest*,
                                    grpc::ServerWriter<v1::BackupChunk>* writer) {
  const auto caller = gate_.admit(*context, "ClusterService.Backup");
  if (!caller.ok()) return rpc::to_grpc(caller.status());
  if (options_.copy_store == nullptr) {
    return rpc::to_grpc(
        rpc::error(absl::StatusCode::kUnimplemented, "NO_BACKUP", "this controller's store has no file"));
  }
  std::string path = options_.scratch + "/backup-XXXXXX";
  const int fd = ::mkstemp(path.data());
  if (fd < 0) return rpc::to_grpc(errno_status(errno, absl::StrCat("make a file in ", options_.scratch)));
  ::close(fd);
  const absl::Status sent = send_copy(path, *caller, *writer);
  (void)::unlink(path.c_str());
  return rpc::to_grpc(sent);
}

grpc::Status ClusterService::GetDiagnostics(grpc::ServerContext* context, const v1::GetDiagnosticsRequest*,
                                            v1::Diagnostics* response) {
  const absl::StatusOr<auth::Caller> caller = gate_.admit(*context, "ClusterService.GetDiagnostics");
  if (!caller.ok()) return rpc::to_grpc(caller.status());
  if (options_.diagnose != nullptr) *response = options_.diagnose();
  return grpc::Status::OK;
}

absl::Status ClusterService::send_copy(const std::string& path, const auth::Caller& caller,
                                       grpc::ServerWriter<v1::BackupChunk>& writer) {
  TITAN_ASSIGN_OR_RETURN(const store::StoreInfo info, options_.copy_store(path, caller.actor));
  std::ifstream file(path, std::ios::binary);
  v1::BackupChunk chunk;
  chunk.set_size(info.bytes);
  chunk.set_revision(info.revision);
  chunk.set_cluster(info.cluster);
  std::string data(kChunk, '\0');
  for (int64_t left = info.bytes; left > 0;) {
    TITAN_RETURN_IF_ERROR(gate_.stands(caller));
    const auto wanted = static_cast<std::streamsize>(std::min<int64_t>(left, kChunk));
    if (!file.read(data.data(), wanted)) return absl::UnavailableError(absl::StrCat("cannot read ", path));
    chunk.set_data(data.data(), static_cast<size_t>(wanted));
    if (!writer.Write(chunk)) return absl::CancelledError("the reader is gone");
    chunk.Clear();
    left -= wanted;
  }
  return absl::OkStatus();
}

}  // namespace titan::api
