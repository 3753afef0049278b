#pragma once

// Helpers for service methods on gRPC's callback API: absl::Status inside, grpc::Status at the boundary.

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/service/rpc/error.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace titan::rpc {

template <typename Result>
using Done = std::function<void(const absl::StatusOr<Result>&)>;

// Runs a handler that never blocks. An error finishes the call at once. After OK, the handler must have arranged that
// the reactor is finished, now or later, from any thread.
template <typename Handler>
grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, Handler&& handler) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const absl::Status status = std::forward<Handler>(handler)(reactor); !status.ok()) {
    reactor->Finish(to_grpc(status));
  }
  return reactor;
}

// Ends a handler that has filled its response.
inline absl::Status finish_now(grpc::ServerUnaryReactor* reactor) {
  reactor->Finish(grpc::Status::OK);
  return absl::OkStatus();
}

// Returns a continuation that fills the response with `fill(result)` and finishes the call. Call it once.
template <typename Result, typename Fill>
Done<Result> finish(grpc::ServerUnaryReactor* reactor, Fill fill) {
  return [reactor, fill = std::move(fill)](const absl::StatusOr<Result>& result) {
    if (result.ok()) fill(*result);
    reactor->Finish(to_grpc(result.status()));
  };
}

}  // namespace titan::rpc
