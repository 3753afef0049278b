#pragma once

// gRPC reads the whole request of a call before its handler runs, however long it is and whoever sends it: its limit of
// a message's size is compared when all of it is in memory. Here who calls is asked first, and of somebody who cannot
// be told nothing is read. To gRPC such a method is a stream both ways that has one request, as it is on the wire.

#include <memory>
#include <utility>

#include "common/rpc/error.h"
#include "controller/auth/gate.h"
#include "grpcpp/impl/method_handler_impl.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/support/server_callback.h"
#include "grpcpp/support/sync_stream.h"

namespace titan::api {

// Around the handler that gRPC would run itself.
class AdmitFirst : public grpc::internal::MethodHandler {
 public:
  AdmitFirst(std::unique_ptr<grpc::internal::MethodHandler> inner, const auth::Gate& gate)
      : inner_(std::move(inner)), gate_(gate) {}

  void RunHandler(const HandlerParameter& param) override;

 private:
  class Reading;

  const std::unique_ptr<grpc::internal::MethodHandler> inner_;
  const auth::Gate& gate_;
};

// The same for a handler of gRPC's synchronous interface, which has a thread to wait in.
class AdmitFirstAndWait : public grpc::internal::MethodHandler {
 public:
  AdmitFirstAndWait(std::unique_ptr<grpc::internal::MethodHandler> inner, const auth::Gate& gate)
      : inner_(std::move(inner)), gate_(gate) {}

  void RunHandler(const HandlerParameter& param) override;

 private:
  const std::unique_ptr<grpc::internal::MethodHandler> inner_;
  const auth::Gate& gate_;
};

// How gRPC would run a method of a service; of a stranger's call the method never hears.
template <typename Service, typename Request, typename Response>
std::unique_ptr<grpc::internal::MethodHandler> usual_handler(
    Service& service, const auth::Gate& gate,
    grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*, const Request*, Response*)) {
  const auto run = [&service, &gate, method](grpc::CallbackServerContext* context, const Request* request,
                                             Response* response) {
    const absl::Status known = gate.identify(*context).status();
    if (known.ok()) return (service.*method)(context, request, response);
    grpc::ServerUnaryReactor* const refusing = context->DefaultReactor();
    refusing->Finish(rpc::to_grpc(known));
    return refusing;
  };
  return std::make_unique<grpc::internal::CallbackUnaryHandler<Request, Response>>(run);
}

template <typename Response>
class Refusing : public grpc::ServerWriteReactor<Response> {
 public:
  explicit Refusing(const absl::Status& why) { this->Finish(rpc::to_grpc(why)); }
  void OnDone() override { delete this; }
};

template <typename Service, typename Request, typename Response>
std::unique_ptr<grpc::internal::MethodHandler> usual_handler(
    Service& service, const auth::Gate& gate,
    grpc::ServerWriteReactor<Response>* (Service::*method)(grpc::CallbackServerContext*, const Request*)) {
  const auto run = [&service, &gate, method](grpc::CallbackServerContext* context,
                                             const Request* request) -> grpc::ServerWriteReactor<Response>* {
    const absl::Status known = gate.identify(*context).status();
    if (!known.ok()) return new Refusing<Response>(known);
    return (service.*method)(context, request);
  };
  return std::make_unique<grpc::internal::CallbackServerStreamingHandler<Request, Response>>(run);
}

// Of all methods of a service, in the order of its .proto. `mark`: the service's MarkMethodStreamed, which is
// protected.
template <typename Mark, typename Service, typename... Methods>
void admit_first(const Mark& mark, Service& service, const auth::Gate& gate, Methods... methods) {
  int index = 0;
  (mark(index++, new AdmitFirst(usual_handler(service, gate, methods), gate)), ...);
}

// Likewise of a service on the synchronous interface, whose methods ask the gate themselves before anything else.
template <typename Service, typename Request, typename Response>
std::unique_ptr<grpc::internal::MethodHandler> usual_handler_that_waits(
    Service& service, grpc::Status (Service::*method)(grpc::ServerContext*, const Request*, Response*)) {
  const auto run = [method](Service* self, grpc::ServerContext* context, const Request* request, Response* response) {
    return (self->*method)(context, request, response);
  };
  return std::make_unique<grpc::internal::RpcMethodHandler<Service, Request, Response>>(run, &service);
}
template <typename Service, typename Request, typename Response>
std::unique_ptr<grpc::internal::MethodHandler> usual_handler_that_waits(
    Service& service,
    grpc::Status (Service::*method)(grpc::ServerContext*, const Request*, grpc::ServerWriter<Response>*)) {
  const auto run = [method](Service* self, grpc::ServerContext* context, const Request* request,
                            grpc::ServerWriter<Response>* writer) { return (self->*method)(context, request, writer); };
  return std::make_unique<grpc::internal::ServerStreamingHandler<Service, Request, Response>>(run, &service);
}

template <typename Mark, typename Service, typename... Methods>
void admit_first_and_wait(const Mark& mark, Service& service, const auth::Gate& gate, Methods... methods) {
  int index = 0;
  (mark(index++, new AdmitFirstAndWait(usual_handler_that_waits(service, methods), gate)), ...);
}

}  // namespace titan::api
