#pragma once

#include "controller/api/answer_router.h"
#include "controller/auth/gate.h"
#include "controller/reconcile/reconciler.h"
#include "titan/v1/worker.grpc.pb.h"

namespace titan::api {

// Serves one long stream per worker without a thread for each. Messages are written as bytes, so that what many workers
// receive is stored once.
class WorkerService : public v1::WorkerService::WithRawCallbackMethod_Session<v1::WorkerService::Service> {
 public:
  WorkerService(reconcile::Reconciler& reconciler, Routers& answers, const auth::Gate& gate)
      : reconciler_(reconciler), answers_(answers), gate_(gate) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(grpc::CallbackServerContext* context) override;

 private:
  reconcile::Reconciler& reconciler_;
  Routers& answers_;
  const auth::Gate& gate_;
};

}  // namespace titan::api
