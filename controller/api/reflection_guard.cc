#include "controller/api/reflection_guard.h"

#include "absl/strings/match.h"

namespace titan::api {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::ServerRpcInfo;

class Guard : public grpc::experimental::Interceptor {
 public:
  Guard(const auth::Gate& gate, ServerRpcInfo& info) : gate_(gate), context_(*info.server_context()) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    const bool begins = methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA);
    if (begins && !gate_.identify(context_).ok()) context_.TryCancel();
    methods->Proceed();
  }

 private:
  const auth::Gate& gate_;
  grpc::ServerContextBase& context_;
};

}  // namespace

grpc::experimental::Interceptor* ReflectionGuard::CreateServerInterceptor(ServerRpcInfo* info) {
  const bool reflects = info->method() != nullptr && absl::StartsWith(info->method(), "/grpc.reflection.");
  return reflects ? new Guard(gate_, *info) : nullptr;
}

}  // namespace titan::api
