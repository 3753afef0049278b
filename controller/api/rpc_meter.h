#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/service/metrics/metrics.h"
#include "grpcpp/support/server_interceptor.h"

namespace titan::api {

// Measures every call of a server at one place: how long unary calls took, by method and code; how many streams began,
// ended and are open. Methods that are not Titan's own (health, reflection, names that a client made up) are "other".
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
  // By gRPC's path, "/titan.v1.JobService/GetJob"; not changed after the constructor.
  absl::flat_hash_map<std::string, std::unique_ptr<Method>> methods_;
  Method* other_ = nullptr;
};

}  // namespace titan::api
