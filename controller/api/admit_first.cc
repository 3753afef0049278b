#include "controller/api/admit_first.h"

#include <functional>

#include "grpc/byte_buffer.h"
#include "grpc/grpc.h"
#include "grpc/support/time.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/impl/codegen/interceptor_common.h"

namespace titan::api {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::internal::InterceptorBatchMethodsImpl;
using grpc::internal::MethodHandler;

// Returns an empty request, for callers that are refused or sent none.
grpc_byte_buffer* no_bytes() { return ::grpc_raw_byte_buffer_create(nullptr, 0); }

// Shows interceptors the request, as gRPC does when it reads the request itself. Returns true when no interceptor has
// more to do; otherwise `then` runs later.
bool notify_interceptors(InterceptorBatchMethodsImpl& batch, grpc::internal::Call* call, void* request,
                         std::function<void()> then) {
  batch.SetCall(call);
  batch.SetReverse();
  batch.AddInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE);
  batch.SetRecvMessage(request, nullptr);
  return batch.RunInterceptors(std::move(then));
}

grpc_op reading(grpc_byte_buffer** bytes) {
  grpc_op read{};
  read.op = GRPC_OP_RECV_MESSAGE;
  read.data.recv_message.recv_message = bytes;
  return read;
}

grpc_byte_buffer* read_now(grpc::internal::Call& call) {
  grpc_byte_buffer* bytes = nullptr;
  const grpc_op read = reading(&bytes);
  if (::grpc_call_start_batch(call.call(), &read, 1, &bytes, nullptr) != GRPC_CALL_OK) return nullptr;
  ::grpc_completion_queue_pluck(call.cq()->cq(), &bytes, ::gpr_inf_future(GPR_CLOCK_REALTIME), nullptr);
  return bytes;
}

}  // namespace

// Holds one call until its request has arrived, then passes it to one of the handlers.
class AdmitFirst::Reading : public grpc_completion_queue_functor {
 public:
  Reading(const Handlers& handlers, const HandlerParameter& param)
      : grpc_completion_queue_functor{&Reading::on_read, /*inlineable=*/0, 0, nullptr},
        handlers_(handlers),
        call_(param.call),
        context_(param.server_context),
        call_requester_(param.call_requester) {}

  void begin() {
    const grpc_op read = reading(&bytes_);
    if (::grpc_call_start_batch(call_->call(), &read, 1, this, nullptr) != GRPC_CALL_OK) refuse();
  }
  // Lets the usual handler refuse the call: it identifies the caller again.
  void refuse() { hand_over(no_bytes(), *handlers_.usual, /*is_read=*/false); }

 private:
  static void on_read(grpc_completion_queue_functor* self, int /*ok*/) {
    auto* const reading = static_cast<Reading*>(self);
    if (reading->bytes_ != nullptr)
      return reading->hand_over(reading->bytes_, *reading->handlers_.usual, /*is_read=*/true);
    reading->hand_over(no_bytes(), *reading->handlers_.missing, /*is_read=*/false);
  }

  void hand_over(grpc_byte_buffer* bytes, MethodHandler& handler, bool is_read) {
    grpc::Status parsed;
    request_ = handler.Deserialize(call_->call(), bytes, &parsed, &data_);
    // `data_` fits both handlers: they have the same request type.
    handler_ = parsed.ok() ? &handler : handlers_.undecodable.get();
    const bool shown = is_read && parsed.ok();
    if (notify_interceptors(batch_, call_, shown ? request_ : nullptr, [this] { run(); })) run();
  }
  void run() {
    const std::unique_ptr<Reading> own(this);
    handler_->RunHandler(HandlerParameter(call_, context_, request_, grpc::Status::OK, data_, call_requester_));
  }

  const Handlers& handlers_;
  MethodHandler* handler_ = nullptr;
  grpc::internal::Call* const call_;
  grpc::ServerContextBase* const context_;
  const std::function<void()> call_requester_;
  grpc_byte_buffer* bytes_ = nullptr;
  void* request_ = nullptr;
  void* data_ = nullptr;
  InterceptorBatchMethodsImpl batch_;
};

void AdmitFirst::RunHandler(const HandlerParameter& param) {
  auto* const reading = new Reading(handlers_, param);  // Deletes itself in run().
  return gate_.identify(*param.server_context).ok() ? reading->begin() : reading->refuse();
}

void AdmitFirstAndWait::RunHandler(const HandlerParameter& param) {
  const bool is_known = gate_.identify(*param.server_context).ok();
  grpc_byte_buffer* bytes = is_known ? read_now(*param.call) : nullptr;
  const bool is_read = bytes != nullptr;
  void *data = nullptr, *request = nullptr;
  grpc::Status status;
  request = inner_->Deserialize(param.call->call(), is_read ? bytes : no_bytes(), &status, &data);
  if (!status.ok()) status = rpc::to_grpc(undecodable_request(type_));
  if (is_known && !is_read) status = rpc::to_grpc(missing_request(type_));
  const auto run = [&] {
    inner_->RunHandler(HandlerParameter(param.call, param.server_context, request, status, data, param.call_requester));
  };
  InterceptorBatchMethodsImpl batch;  // Titan's interceptors are done when they return.
  if (notify_interceptors(batch, param.call, is_read && status.ok() ? request : nullptr, run)) run();
}

}  // namespace titan::api
