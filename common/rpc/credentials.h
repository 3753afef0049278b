#pragma once

#include <memory>

#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace titan::rpc {

// What every channel and every listener of Titan is made with: the one place that knows whether connections are
// encrypted and who is on their other end. Today nothing is, and nobody is known.
inline std::shared_ptr<grpc::ChannelCredentials> channel_credentials() { return grpc::InsecureChannelCredentials(); }
inline std::shared_ptr<grpc::ServerCredentials> server_credentials() { return grpc::InsecureServerCredentials(); }

}  // namespace titan::rpc
