#pragma once

#include "controller/auth/gate.h"
#include "grpcpp/support/server_interceptor.h"

namespace titan::api {

// Ends calls of gRPC's reflection service whose caller cannot be told, before that reads anything of them.
class ReflectionGuard : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ReflectionGuard(const auth::Gate& gate) : gate_(gate) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  const auth::Gate& gate_;
};

}  // namespace titan::api
