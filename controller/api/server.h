#pragma once

// Starts the controller's gRPC server, and the one that names the leader while another controller leads.

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "common/service/metrics/metrics.h"
#include "controller/api/auth_service.h"
#include "controller/api/cluster_service.h"
#include "controller/api/health.h"
#include "controller/api/job_service.h"
#include "controller/api/node_service.h"
#include "controller/api/worker_service.h"
#include "controller/auth/audit.h"
#include "controller/auth/gate.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace titan::api {

// Starts the services of `builder` at HOST:PORT or unix:PATH and stores the bound port. Makes a unix socket's file
// accessible only to its owner: anyone who opens it is an admin. Errors: Unavailable when the address cannot be
// listened on.
absl::StatusOr<std::unique_ptr<grpc::Server>> listen(grpc::ServerBuilder& builder, const std::string& address,
                                                     const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                                     int* port);

struct ServerOptions {
  std::string address = "127.0.0.1:7700";  // HOST:PORT or unix:PATH; port 0 takes a free one.
  bool reflection = true;
  std::function<std::string()> new_id;
  ClusterOptions cluster;
  auth::GateOptions gate;
  std::shared_ptr<auth::Audit> audit;  // Null: calls are not audited.
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  metrics::Metrics* metrics = nullptr;  // Counts and times calls; null: they are not measured. Outlives the server.
  std::function<void()> on_tick;        // Called after each tick of the reconciler, as a sign of life.
};

// Serves all services on one port, and runs the thread that ticks the reconciler.
class Server {
 public:
  // Errors: Unavailable when the address cannot be listened on; those of reading the store.
  static absl::StatusOr<std::unique_ptr<Server>> start(reconcile::Reconciler& reconciler, store::Store& store,
                                                       const ServerOptions& options);
  // Cancels calls and streams that do not end within 200 ms.
  ~Server();

  int port() const { return port_; }

 private:
  Server(reconcile::Reconciler& reconciler, store::Store& store, std::unique_ptr<auth::Tokens> tokens,
         const ServerOptions& options);
  void run_ticks();
  void watch_calls(grpc::ServerBuilder& builder, metrics::Metrics* metrics);

  reconcile::Reconciler& reconciler_;
  const std::function<void()> on_tick_;
  reconcile::Wakers ticks_;
  Routers answers_;
  const std::shared_ptr<auth::Audit> audit_;
  const std::unique_ptr<auth::Tokens> tokens_;
  auth::Gate gate_;
  JobService jobs_;
  NodeService nodes_;
  WorkerService workers_;
  ClusterService cluster_;
  AuthService auth_;
  Health health_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  sync::Mutex mutex_;
  sync::Condition stop_;
  bool stopping_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

// Answers while another controller leads: every call gets Unavailable, reason NOT_LEADER, with the leader's address in
// its message and its metadata ("leader").
class Standby : public grpc::CallbackGenericService {
 public:
  // `leader` returns the leader's address, or ""; called from any thread. `address` and `credentials`: see
  // ServerOptions. Errors: Unavailable when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Standby>> start(
      const std::string& address, std::function<std::string()> leader,
      const std::shared_ptr<grpc::ServerCredentials>& credentials = grpc::InsecureServerCredentials());
  // Frees the address. A call that arrives meanwhile may be answered CANCELLED.
  ~Standby() override;

  int port() const { return port_; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  explicit Standby(std::function<std::string()> leader) : leader_(std::move(leader)) {}

  const std::function<std::string()> leader_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace titan::api
