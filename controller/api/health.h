#pragma once

#include "controller/auth/gate.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/support/server_callback.h"

namespace titan::api {

inline constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";

// grpc.health.v1.Health, as gRPC's own is but for one thing: of somebody who cannot be told no request is read, and the
// answer is about all of the server.
class Health : public grpc::Service {
 public:
  explicit Health(const auth::Gate& gate);

 private:
  // On the wire what HealthCheckRequest {string service = 1} and HealthCheckResponse {ServingStatus status = 1} are.
  using Request = google::protobuf::StringValue;
  using Response = google::protobuf::Int32Value;
  class Call;

  void add(const char* method, bool watches);

  const auth::Gate& gate_;
};

}  // namespace titan::api
