#pragma once

#include "controller/auth/gate.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/support/server_callback.h"

namespace titan::api {

inline constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";

// Serves grpc.health.v1.Health like gRPC's own service, with one difference: it reads no request from a caller that it
// cannot identify, and answers for the whole server.
class Health : public grpc::Service {
 public:
  explicit Health(const auth::Gate& gate);

 private:
  // These have the wire format of HealthCheckRequest {string service = 1} and HealthCheckResponse {ServingStatus status
  // = 1}.
  using Request = google::protobuf::StringValue;
  using Response = google::protobuf::Int32Value;
  class Call;

  void add(const char* method, bool watches);

  const auth::Gate& gate_;
};

}  // namespace titan::api
