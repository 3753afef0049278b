#pragma once

#include <memory>

#include "controller/auth/audit.h"
#include "controller/auth/gate.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/server_interceptor.h"

namespace titan::api {

// Writes down each call that changes something, between its handler and its answer. Both outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> audit_calls(auth::Audit& audit,
                                                                                   const auth::Gate& gate);

// What a request is about: the name of a job, node or token in it; empty when it has none.
std::string resource_of(const google::protobuf::Message& request);

}  // namespace titan::api
