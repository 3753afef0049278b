#include "controller/api/server.h"

#include <sys/stat.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/base/text/host_port.h"
#include "common/service/rpc/error.h"
#include "controller/api/interceptors.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_builder.h"

namespace titan::api {

absl::StatusOr<std::unique_ptr<grpc::Server>> listen(grpc::ServerBuilder& builder, const std::string& address,
                                                     const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                                     int* port) {
  builder.AddListeningPort(address, credentials, port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // Two controllers must not share a port.
  const bool makes_file = absl::StartsWith(address, "unix:");
  const mode_t usual = makes_file ? umask(0077) : 0;
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (makes_file) umask(usual);
  if (server != nullptr) return server;
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, "; is the port in use? Choose another with --listen (port 0: any)"));
}

namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);

auth::GateOptions gate_of(const ServerOptions& options) {
  auth::GateOptions gate = options.gate;
  if (const auto where = split_host_port(options.address)) gate.listens = where->host;
  return gate;
}

}  // namespace

Server::Server(reconcile::Reconciler& reconciler, store::Store& store, std::unique_ptr<auth::Tokens> tokens,
               const ServerOptions& options)
    : reconciler_(reconciler),
      on_tick_(options.on_tick),
      audit_(options.audit),
      tokens_(std::move(tokens)),
      gate_(gate_of(options), *tokens_),
      jobs_(reconciler, store, answers_, ticks_, options.new_id, gate_),
      nodes_(reconciler, gate_),
      workers_(reconciler, answers_, gate_),
      cluster_(reconciler, store, options.cluster, gate_),
      auth_(*tokens_, gate_),
      health_(gate_) {
  // Calls may arrive before the server knows the bound port.
  if (const auto where = split_host_port(options.address)) gate_.set_port(where->port);
}

absl::StatusOr<std::unique_ptr<Server>> Server::start(reconcile::Reconciler& reconciler, store::Store& store,
                                                      const ServerOptions& options) {
  TITAN_ASSIGN_OR_RETURN(auto tokens, auth::Tokens::load(store, [] { return absl::Now(); }));
  std::unique_ptr<Server> server(new Server(reconciler, store, std::move(tokens), options));
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.RegisterService(&server->jobs_);
  builder.RegisterService(&server->nodes_);
  builder.RegisterService(&server->workers_);
  builder.RegisterService(&server->cluster_);
  builder.RegisterService(&server->auth_);
  builder.RegisterService(&server->health_);
  server->watch_calls(builder, options.metrics);
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Closes idle connections, which frees their descriptors.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 120'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  TITAN_ASSIGN_OR_RETURN(server->server_, listen(builder, options.address, options.credentials, &server->port_));
  server->gate_.set_port(server->port_);
  server->ticker_ = std::thread([raw = server.get()] { raw->run_ticks(); });
  return server;
}

// The meter comes first, so that its durations include the audit log.
void Server::watch_calls(grpc::ServerBuilder& builder, metrics::Metrics* metrics) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  if (metrics != nullptr) interceptors.push_back(std::make_unique<RpcMeter>(*metrics));
  interceptors.push_back(std::make_unique<ReflectionGuard>(gate_));
  if (audit_ != nullptr) interceptors.push_back(audit_calls(*audit_, gate_));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
}

Server::~Server() {
  {
    sync::Lock lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (ticker_.joinable()) ticker_.join();
  if (server_ != nullptr) {
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

namespace {

// Answers a call with NOT_LEADER.
class NotLeaderReactor : public grpc::ServerGenericBidiReactor {
 public:
  explicit NotLeaderReactor(const std::string& leader) {
    const std::string who = leader.empty() ? "no controller leads now" : absl::StrCat(leader, " leads");
    Finish(rpc::to_grpc(rpc::error(absl::StatusCode::kUnavailable, "NOT_LEADER",
                                   absl::StrCat("this controller stands by: ", who), {{"leader", leader}})));
  }
  void OnDone() override { delete this; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Standby>> Standby::start(const std::string& address, std::function<std::string()> leader,
                                                        const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  std::unique_ptr<Standby> standby(new Standby(std::move(leader)));
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(standby.get());
  TITAN_ASSIGN_OR_RETURN(standby->server_, listen(builder, address, credentials, &standby->port_));
  return standby;
}

Standby::~Standby() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  server_->Wait();
}

grpc::ServerGenericBidiReactor* Standby::CreateReactor(grpc::GenericCallbackServerContext*) {
  return new NotLeaderReactor(leader_());
}

}  // namespace titan::api
