#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace titan::rpc {

// A plain channel to a controller within this machine, for tests and measurements: keepalive that finds a dead peer in
// 15 s, quick reconnects, and calls that found nobody (UNAVAILABLE) repeated a few times.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address);

// Every unary call has a deadline.
void set_deadline(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace titan::rpc
