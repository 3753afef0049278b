#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/auth/gate.h"
#include "controller/reconcile/reconciler.h"
#include "controller/store/backup.h"
#include "titan/v1/cluster.grpc.pb.h"

namespace titan::api {

struct ClusterOptions {
  std::string id;
  absl::Time start_time;
  // Writes a copy of the store to an empty file; null: this controller's store has no file.
  std::function<absl::StatusOr<store::StoreInfo>(const std::string& copy, const std::string& actor)> copy_store;
  std::string scratch;                        // Folder for copies until they are sent.
  std::function<v1::Diagnostics()> diagnose;  // Called on gRPC's threads; null: GetDiagnostics returns nothing.
  // Copies the store in memory, for when it cannot be copied to a file; null: this is not possible.
  std::function<absl::StatusOr<store::StoreImage>(const std::string& actor)> copy_in_memory;
  // Why the state folder cannot be written now, empty when it can; null: unknown.
  std::function<std::string()> state_folder_problem;
  int64_t default_time_limit_seconds = 0;
};

// Uses gRPC's synchronous interface: its calls are rare and slow, and nothing else needs that interface's threads.
class ClusterService : public v1::ClusterService::Service {
 public:
  ClusterService(reconcile::Reconciler& reconciler, const store::Store& store, ClusterOptions options,
                 const auth::Gate& gate);

  grpc::Status GetCluster(grpc::ServerContext* context, const v1::GetClusterRequest* request,
                          v1::Cluster* response) override;
  grpc::Status Backup(grpc::ServerContext* context, const v1::BackupRequest* request,
                      grpc::ServerWriter<v1::BackupChunk>* writer) override;
  grpc::Status GetDiagnostics(grpc::ServerContext* context, const v1::GetDiagnosticsRequest* request,
                              v1::Diagnostics* response) override;

 private:
  absl::Status back_up(const auth::Caller& caller, grpc::ServerWriter<v1::BackupChunk>& writer);
  absl::Status send(const store::StoreInfo& info, std::istream& copy, const auth::Caller& caller,
                    grpc::ServerWriter<v1::BackupChunk>& writer);

  reconcile::Reconciler& reconciler_;
  const store::Store& store_;
  const ClusterOptions options_;
  const auth::Gate& gate_;
};

}  // namespace titan::api
