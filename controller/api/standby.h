#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"

namespace titan::api {

// What a controller answers while another one leads: every call gets Unavailable, reason NOT_LEADER, with the leader's
// address in its message and its metadata ("leader").
class Standby : public grpc::CallbackGenericService {
 public:
  // `leader`: its address now, or empty; called from any thread. `address` and `credentials` as in ServerOptions.
  // Errors: Unavailable when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Standby>> start(
      const std::string& address, std::function<std::string()> leader,
      const std::shared_ptr<grpc::ServerCredentials>& credentials = grpc::InsecureServerCredentials());
  // The address is free afterwards. A call that arrives just then may be answered CANCELLED.
  ~Standby() override;

  int port() const { return port_; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  explicit Standby(std::function<std::string()> leader) : leader_(std::move(leader)) {}

  const std::function<std::string()> leader_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace titan::api
