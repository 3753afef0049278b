#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace titan::api {

// Starts what `builder` holds at HOST:PORT or unix:PATH and says which port was bound. A unix socket's file is its
// owner's alone: who may open it is an admin. Errors: Unavailable when the address cannot be listened on.
absl::StatusOr<std::unique_ptr<grpc::Server>> listen(grpc::ServerBuilder& builder, const std::string& address,
                                                     const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                                     int* port);

}  // namespace titan::api
