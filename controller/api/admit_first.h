#pragma once

// gRPC reads a call's whole request into memory before the handler runs, and compares it with the message size limit
// only then. The handlers here identify the caller first, and read nothing from a caller that they cannot identify.
// gRPC must see such a method as a stream in both directions with one request; the bytes on the wire are the same.
//
// The checks that every request needs run here as well, before the method sees the request (request_check.h): that
// there is one, that it decodes (gRPC itself answers UNIMPLEMENTED without a message), and that its fields have valid
// values.

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "common/service/rpc/error.h"
#include "controller/api/request_check.h"
#include "controller/auth/gate.h"
#include "grpcpp/impl/method_handler_impl.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "grpcpp/support/sync_stream.h"

namespace titan::api {

// Handlers of one method: the usual one, and those that refuse a request in its place.
struct Handlers {
  std::unique_ptr<grpc::internal::MethodHandler> usual;
  std::unique_ptr<grpc::internal::MethodHandler> undecodable;  // Gets no request.
  std::unique_ptr<grpc::internal::MethodHandler> missing;      // Gets an empty request.
};

// Wraps the handlers that gRPC would run itself. `gate` outlives it.
class AdmitFirst : public grpc::internal::MethodHandler {
 public:
  AdmitFirst(Handlers handlers, const auth::Gate& gate) : handlers_(std::move(handlers)), gate_(gate) {}

  void RunHandler(const HandlerParameter& param) override;

 private:
  class Reading;

  const Handlers handlers_;
  const auth::Gate& gate_;
};

// Does the same for a handler of gRPC's synchronous interface, which blocks a thread. `type`: full name of the
// request's message.
class AdmitFirstAndWait : public grpc::internal::MethodHandler {
 public:
  AdmitFirstAndWait(std::unique_ptr<grpc::internal::MethodHandler> inner, std::string type, const auth::Gate& gate)
      : inner_(std::move(inner)), type_(std::move(type)), gate_(gate) {}

  void RunHandler(const HandlerParameter& param) override;

 private:
  const std::unique_ptr<grpc::internal::MethodHandler> inner_;
  const std::string type_;
  const auth::Gate& gate_;
};

// Ends a server stream at once with an error.
template <typename Response>
class RejectedStream : public grpc::ServerWriteReactor<Response> {
 public:
  explicit RejectedStream(const absl::Status& why) { this->Finish(rpc::to_grpc(why)); }
  void OnDone() override { delete this; }
};

inline grpc::ServerUnaryReactor* refuse_unary(grpc::CallbackServerContext* context, const absl::Status& why) {
  grpc::ServerUnaryReactor* const refusing = context->DefaultReactor();
  refusing->Finish(rpc::to_grpc(why));
  return refusing;
}

// Methods that parse their request themselves get its bytes and check them later.
inline absl::Status check_fields(const grpc::ByteBuffer& /*bytes*/) { return absl::OkStatus(); }

template <typename Request>
std::string type_of() {
  if constexpr (std::is_same_v<Request, grpc::ByteBuffer>) {
    return "message";
  } else {
    return Request::descriptor()->full_name();
  }
}

// Returns the error that keeps a call from its method, or OK.
template <typename Request>
absl::Status check_call(const auth::Gate& gate, const grpc::ServerContextBase& context, const Request& request) {
  if (absl::Status unknown = gate.identify(context).status(); !unknown.ok()) return unknown;
  return check_fields(request);
}

template <typename Request, typename Response>
std::unique_ptr<grpc::internal::MethodHandler> refusing_unary(absl::Status why) {
  return std::make_unique<grpc::internal::CallbackUnaryHandler<Request, Response>>(
      [why = std::move(why)](grpc::CallbackServerContext* context, const Request*, Response*) {
        return refuse_unary(context, why);
      });
}
template <typename Request, typename Response>
std::unique_ptr<grpc::internal::MethodHandler> refusing_stream(absl::Status why) {
  return std::make_unique<grpc::internal::CallbackServerStreamingHandler<Request, Response>>(
      [why = std::move(why)](grpc::CallbackServerContext*, const Request*) {
        return new RejectedStream<Response>(why);
      });
}

// Makes the handlers with which gRPC would run a method of a service.
template <typename Service, typename Request, typename Response>
Handlers handlers_of(Service& service, const auth::Gate& gate,
                     grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*, const Request*,
                                                                  Response*)) {
  const auto run = [&service, &gate, method](grpc::CallbackServerContext* context, const Request* request,
                                             Response* response) {
    const absl::Status wrong = check_call(gate, *context, *request);
    return wrong.ok() ? (service.*method)(context, request, response) : refuse_unary(context, wrong);
  };
  const std::string type = type_of<Request>();
  return {std::make_unique<grpc::internal::CallbackUnaryHandler<Request, Response>>(run),
          refusing_unary<Request, Response>(undecodable_request(type)),
          refusing_unary<Request, Response>(missing_request(type))};
}

template <typename Service, typename Request, typename Response>
Handlers handlers_of(Service& service, const auth::Gate& gate,
                     grpc::ServerWriteReactor<Response>* (Service::*method)(grpc::CallbackServerContext*,
                                                                            const Request*)) {
  const auto run = [&service, &gate, method](grpc::CallbackServerContext* context,
                                             const Request* request) -> grpc::ServerWriteReactor<Response>* {
    const absl::Status wrong = check_call(gate, *context, *request);
    if (!wrong.ok()) return new RejectedStream<Response>(wrong);
    return (service.*method)(context, request);
  };
  const std::string type = type_of<Request>();
  return {std::make_unique<grpc::internal::CallbackServerStreamingHandler<Request, Response>>(run),
          refusing_stream<Request, Response>(undecodable_request(type)),
          refusing_stream<Request, Response>(missing_request(type))};
}

// Registers handlers for all methods of a service, in the order of its .proto. `mark` calls the service's
// MarkMethodStreamed, which is protected.
template <typename Mark, typename Service, typename... Methods>
void admit_first(const Mark& mark, Service& service, const auth::Gate& gate, Methods... methods) {
  int index = 0;
  (mark(index++, new AdmitFirst(handlers_of(service, gate, methods), gate)), ...);
}

// Makes the handler of a service on the synchronous interface. Its methods call the gate themselves before anything
// else.
template <typename Service, typename Request, typename Response>
std::unique_ptr<AdmitFirstAndWait> waiting_handler(Service& service, const auth::Gate& gate,
                                                   grpc::Status (Service::*method)(grpc::ServerContext*, const Request*,
                                                                                   Response*)) {
  const auto run = [method](Service* self, grpc::ServerContext* context, const Request* request, Response* response) {
    const absl::Status wrong = check_fields(*request);
    return wrong.ok() ? (self->*method)(context, request, response) : rpc::to_grpc(wrong);
  };
  return std::make_unique<AdmitFirstAndWait>(
      std::make_unique<grpc::internal::RpcMethodHandler<Service, Request, Response>>(run, &service),
      Request::descriptor()->full_name(), gate);
}
template <typename Service, typename Request, typename Response>
std::unique_ptr<AdmitFirstAndWait> waiting_handler(Service& service, const auth::Gate& gate,
                                                   grpc::Status (Service::*method)(grpc::ServerContext*, const Request*,
                                                                                   grpc::ServerWriter<Response>*)) {
  const auto run = [method](Service* self, grpc::ServerContext* context, const Request* request,
                            grpc::ServerWriter<Response>* writer) {
    const absl::Status wrong = check_fields(*request);
    return wrong.ok() ? (self->*method)(context, request, writer) : rpc::to_grpc(wrong);
  };
  return std::make_unique<AdmitFirstAndWait>(
      std::make_unique<grpc::internal::ServerStreamingHandler<Service, Request, Response>>(run, &service),
      Request::descriptor()->full_name(), gate);
}

template <typename Mark, typename Service, typename... Methods>
void admit_first_and_wait(const Mark& mark, Service& service, const auth::Gate& gate, Methods... methods) {
  int index = 0;
  (mark(index++, waiting_handler(service, gate, methods).release()), ...);
}

}  // namespace titan::api
