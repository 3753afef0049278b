#include "controller/api/cluster_service.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/service/rpc/error.h"
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

// A temporary file that is removed with this object; status() says why there is none.
class Scratch {
 public:
  explicit Scratch(const std::string& folder) : path_(folder + "/backup-XXXXXX") {
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) status_ = errno_status(errno, absl::StrCat("make a file in ", folder));
    if (fd >= 0) ::close(fd);
  }
  ~Scratch() {
    if (status_.ok()) (void)::unlink(path_.c_str());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const absl::Status& status() const { return status_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  absl::Status status_;
};

// File error codes mean something else to a client: NotFound says that there is no such job or node.
absl::Status backup_failed(const absl::Status& why) {
  const bool is_full = absl::IsResourceExhausted(why);
  return rpc::error(is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal, "BACKUP_FAILED",
                    absl::StrCat("the controller cannot make a copy of its store: ", why.message()));
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
  if (options_.state_folder_problem != nullptr) response->set_state_folder_problem(options_.state_folder_problem());
  return grpc::Status::OK;
}

grpc::Status ClusterService::Backup(grpc::ServerContext* context, const v1::BackupRequest*,
                                    grpc::ServerWriter<v1::BackupChunk>* writer) {
  const auto caller = gate_.admit(*context, "ClusterService.Backup");
  if (!caller.ok()) return rpc::to_grpc(caller.status());
  if (options_.copy_store == nullptr) {
    return rpc::to_grpc(rpc::error(absl::StatusCode::kUnimplemented, "NO_BACKUP",
                                   "this controller's store is in etcd: back it up with etcd's own tools"));
  }
  return rpc::to_grpc(back_up(*caller, *writer));
}

absl::Status ClusterService::back_up(const auth::Caller& caller, grpc::ServerWriter<v1::BackupChunk>& writer) {
  absl::Status on_disk;
  {
    const Scratch scratch(options_.scratch);
    on_disk = scratch.status();
    if (on_disk.ok()) {
      const absl::StatusOr<store::StoreInfo> made = options_.copy_store(scratch.path(), caller.actor);
      on_disk = made.status();
      std::ifstream file(scratch.path(), std::ios::binary);
      if (made.ok()) return send(*made, file, caller, writer);
    }
  }
  // A backup matters most when the disk is full or the state folder is gone.
  if (absl::IsDataLoss(on_disk) || options_.copy_in_memory == nullptr) return backup_failed(on_disk);
  const absl::StatusOr<store::StoreImage> image = options_.copy_in_memory(caller.actor);
  if (!image.ok()) return backup_failed(image.status());
  std::istringstream bytes(image->bytes, std::ios::binary);
  return send(image->info, bytes, caller, writer);
}

grpc::Status ClusterService::GetDiagnostics(grpc::ServerContext* context, const v1::GetDiagnosticsRequest*,
                                            v1::Diagnostics* response) {
  const absl::StatusOr<auth::Caller> caller = gate_.admit(*context, "ClusterService.GetDiagnostics");
  if (!caller.ok()) return rpc::to_grpc(caller.status());
  if (options_.diagnose != nullptr) *response = options_.diagnose();
  return grpc::Status::OK;
}

absl::Status ClusterService::send(const store::StoreInfo& info, std::istream& copy, const auth::Caller& caller,
                                  grpc::ServerWriter<v1::BackupChunk>& writer) {
  v1::BackupChunk chunk;
  chunk.set_size(info.bytes);
  chunk.set_revision(info.revision);
  chunk.set_cluster(info.cluster);
  std::string data(kChunk, '\0');
  for (int64_t left = info.bytes; left > 0;) {
    TITAN_RETURN_IF_ERROR(gate_.stands(caller));
    const auto wanted = static_cast<std::streamsize>(std::min<int64_t>(left, kChunk));
    if (!copy.read(data.data(), wanted)) return backup_failed(absl::InternalError("cannot read the copy"));
    chunk.set_data(data.data(), static_cast<size_t>(wanted));
    if (!writer.Write(chunk)) return absl::CancelledError("the reader is gone");
    chunk.Clear();
    left -= wanted;
  }
  return absl::OkStatus();
}

}  // namespace titan::api
