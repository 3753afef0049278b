#pragma once

// Intercepts every call of a server: refuses reflection to unknown callers, records changes for the audit log, and
// measures calls.

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/service/metrics/metrics.h"
#include "controller/auth/audit.h"
#include "controller/auth/gate.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/server_interceptor.h"

namespace titan::api {

// Ends calls of gRPC's reflection service by callers that cannot be identified, before the service reads anything.
class ReflectionGuard : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ReflectionGuard(const auth::Gate& gate) : gate_(gate) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  const auth::Gate& gate_;
};

// Records each call that changes something, between its handler and its answer. Both arguments outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> audit_calls(auth::Audit& audit,
                                                                                   const auth::Gate& gate);

// Returns the name of the job, node or token that a request is about; empty when it has none.
std::string resource_of(const google::protobuf::Message& request);

// Measures every call of a server: durations of unary calls by method and code; how many streams began, ended and are
// open. Methods that are not Titan's (health, reflection, names that a client made up) are counted as "other".
class RpcMeter : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // `metrics` outlives the server.
  explicit RpcMeter(metrics::Metrics& metrics);
  ~RpcMeter() override;

  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  class Call;
  class UnaryCall;
  class StreamCall;
  struct Method;

  void add_method(const std::string& name, bool streams);

  metrics::Metrics& metrics_;
  // Keyed by gRPC's path, "/titan.v1.JobService/GetJob"; not changed after the constructor.
  absl::flat_hash_map<std::string, std::unique_ptr<Method>> methods_;
  Method* other_ = nullptr;
};

}  // namespace titan::api
