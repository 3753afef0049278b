#include "controller/api/server.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/credentials.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"

namespace titan::api {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);

}  // namespace

Server::Server(reconcile::Reconciler& reconciler, store::Store& store, const ServerOptions& options)
    : reconciler_(reconciler),
      on_tick_(options.on_tick),
      jobs_(reconciler, store, answers_, ticks_, options.new_id),
      nodes_(reconciler),
      workers_(reconciler, answers_),
      cluster_(reconciler, store, options.cluster) {}

absl::StatusOr<std::unique_ptr<Server>> Server::start(reconcile::Reconciler& reconciler, store::Store& store,
                                                      const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server(reconciler, store, options));
  grpc::EnableDefaultHealthCheckService(true);
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.address, rpc::server_credentials(), &server->port_);
  builder.RegisterService(&server->jobs_);
  builder.RegisterService(&server->nodes_);
  builder.RegisterService(&server->workers_);
  builder.RegisterService(&server->cluster_);
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // Two controllers on one port would be two truths.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options.address,
                                               "; is the port in use? Choose another with --listen (port 0: any)"));
  }
  grpc::HealthCheckServiceInterface* health = server->server_->GetHealthCheckService();
  for (const char* service :
       {"", "titan.v1.JobService", "titan.v1.NodeService", "titan.v1.WorkerService", "titan.v1.ClusterService"}) {
    health->SetServingStatus(service, true);
  }
  server->ticker_ = std::thread([raw = server.get()] { raw->run_ticks(); });
  return server;
}

Server::~Server() {
  {
    sync::Lock lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (ticker_.joinable()) ticker_.join();
  if (server_ != nullptr) {
    server_->GetHealthCheckService()->Shutdown();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
    server_->Wait();
  }
}

void Server::run_ticks() {
  bool even = false;
  sync::Lock lock(mutex_);
  while (!stop_.wait_for(mutex_, absl::ToChronoMilliseconds(kTick), [this] { return stopping_; })) {
    mutex_.unlock();
    reconciler_.tick();
    if (on_tick_) on_tick_();
    if ((even = !even)) ticks_.wake_all();
    mutex_.lock();
  }
}

}  // namespace titan::api
