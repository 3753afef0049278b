#pragma once

// Who makes a call.

#include <string>

#include "grpcpp/server_context.h"

namespace titan::api {

// "user:NAME" as the caller claims to be called (metadata `titan-user`, which titanctl sends), else "peer:ADDRESS".
// A claim is no proof: whoever reaches the port may say anything, so nothing is allowed or refused by it. It goes into
// records and events as one word without spaces.
std::string actor_of(const grpc::ServerContextBase& context);

// The two forms, as pure functions. Empty for a name that is none: 1 to 64 of [A-Za-z0-9._@+-].
std::string user_actor(const std::string& name);
// Of gRPC's "ipv4:10.0.0.7:40312", "ipv6:[::1]:40312", "unix:/run/titan.sock": without the port, which says nothing.
std::string peer_actor(const std::string& peer);

}  // namespace titan::api
