#pragma once

#include "controller/api/answer_router.h"
#include "controller/reconcile/reconciler.h"
#include "titan/v1/worker.grpc.pb.h"

namespace titan::api {

// One long stream per worker; a thousand workers are not a thousand threads.
class WorkerService : public v1::WorkerService::CallbackService {
 public:
  WorkerService(reconcile::Reconciler& reconciler, Routers& answers) : reconciler_(reconciler), answers_(answers) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  reconcile::Reconciler& reconciler_;
  Routers& answers_;
};

}  // namespace titan::api
