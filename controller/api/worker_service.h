#pragma once

#include "controller/api/log_router.h"
#include "controller/reconcile/reconciler.h"
#include "titan/v1/worker.grpc.pb.h"

namespace titan::api {

// One long stream per worker; a thousand workers are not a thousand threads.
class WorkerService : public v1::WorkerService::CallbackService {
 public:
  WorkerService(reconcile::Reconciler& reconciler, LogRouter& logs) : reconciler_(reconciler), logs_(logs) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  reconcile::Reconciler& reconciler_;
  LogRouter& logs_;
};

}  // namespace titan::api
