#include "controller/api/health.h"

#include <algorithm>
#include <string>

#include "common/base/sync/sync.h"
#include "controller/api/services.h"

namespace titan::api {
namespace {

constexpr int kServing = 1, kServiceUnknown = 3;

bool is_ours(const std::string& service) {
  const auto all = services();
  return service.empty() ||
         std::any_of(all.begin(), all.end(), [&](const auto* one) { return one->full_name() == service; });
}

}  // namespace

class Health::Call : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit Call(bool watches) : watches_(watches) {}

  void begin(bool is_known) { is_known ? StartRead(&request_) : answer(); }

  void OnReadDone(bool ok) override {
    if (ok) return answer();
    finish({grpc::StatusCode::INVALID_ARGUMENT, "the call has no request"});
  }
  void OnWriteDone(bool /*ok*/) override {
    if (!watches_) finish(grpc::Status::OK);
  }
  void OnCancel() override { finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  // A watched status does not change until the server ends, and the stream ends with it.
  void answer() {
    const bool is_known = is_ours(request_.value());
    if (!is_known && !watches_)
      return finish({grpc::StatusCode::NOT_FOUND, "unknown service; the services are those of titan.v1"});
    response_.set_value(is_known ? kServing : kServiceUnknown);
    const sync::Lock lock(mutex_);
    if (!finished_) StartWrite(&response_);
  }
  void finish(const grpc::Status& status) {
    const sync::Lock lock(mutex_);
    if (!std::exchange(finished_, true)) Finish(status);
  }

  const bool watches_;
  Request request_;
  Response response_;
  sync::Mutex mutex_;
  bool finished_ TITAN_GUARDED_BY(mutex_) = false;
};

Health::Health(const auth::Gate& gate) : gate_(gate) {
  add(kHealthCheck, /*watches=*/false);
  add("/grpc.health.v1.Health/Watch", /*watches=*/true);
}

void Health::add(const char* method, bool watches) {
  using Handler = grpc::internal::CallbackBidiHandler<Request, Response>;
  AddMethod(new grpc::internal::RpcServiceMethod(method, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodCallback(watches ? 1 : 0, new Handler([this, watches](grpc::CallbackServerContext* context) {
                       auto* const call = new Call(watches);  // Deletes itself in OnDone().
                       call->begin(gate_.identify(*context).ok());
                       return call;
                     }));
}

}  // namespace titan::api
