#include "controller/api/standby.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/credentials.h"
#include "common/rpc/error.h"
#include "grpcpp/server_builder.h"

namespace titan::api {
namespace {

// One answer and no more.
class Refusal : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const std::string& leader) {
    const std::string who = leader.empty() ? "none leads at present" : absl::StrCat(leader, " leads");
    Finish(rpc::to_grpc(rpc::error(absl::StatusCode::kUnavailable, "NOT_LEADER",
                                   absl::StrCat("this controller stands by: ", who), {{"leader", leader}})));
  }
  void OnDone() override { delete this; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Standby>> Standby::start(const std::string& address,
                                                        std::function<std::string()> leader) {
  std::unique_ptr<Standby> standby(new Standby(std::move(leader)));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, rpc::server_credentials(), &standby->port_);
  builder.RegisterCallbackGenericService(standby.get());
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  standby->server_ = builder.BuildAndStart();
  if (standby->server_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, "; is the port in use? Choose another with --listen (port 0: any)"));
  }
  return standby;
}

Standby::~Standby() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  server_->Wait();
}

grpc::ServerGenericBidiReactor* Standby::CreateReactor(grpc::GenericCallbackServerContext*) {
  return new Refusal(leader_());
}

}  // namespace titan::api
