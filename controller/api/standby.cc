#include "controller/api/standby.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/service/rpc/error.h"
#include "controller/api/listen.h"
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

absl::StatusOr<std::unique_ptr<Standby>> Standby::start(const std::string& address, std::function<std::string()> leader,
                                                        const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  std::unique_ptr<Standby> standby(new Standby(std::move(leader)));
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(standby.get());
  TITAN_ASSIGN_OR_RETURN(standby->server_, listen(builder, address, credentials, &standby->port_));
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
