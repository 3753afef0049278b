#pragma once

#include <functional>
#include <string>
#include <vector>

#include "controller/api/answer_router.h"
#include "controller/api/fanout.h"
#include "controller/api/job_spec.h"
#include "controller/api/stream.h"
#include "controller/auth/gate.h"
#include "controller/reconcile/reconciler.h"
#include "controller/store/store.h"
#include "titan/v1/job.grpc.pb.h"

namespace titan::api {

// Translates requests; the reconciler decides. Watches write bytes, which are encoded once for all readers.
class JobService : public v1::JobService::WithRawCallbackMethod_WatchJobs<v1::JobService::CallbackService> {
 public:
  // `ticks` is woken a few times a second: for bookmarks, logs that have grown and ranks that record a trace.
  JobService(reconcile::Reconciler& reconciler, store::Store& store, Routers& answers, reconcile::Wakers& ticks,
             std::function<std::string()> new_id, const auth::Gate& gate);

  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext* context, const v1::CreateJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                   v1::Job* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* UpdateJob(grpc::CallbackServerContext* context, const v1::UpdateJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext* context, const v1::DeleteJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* CheckpointJob(grpc::CallbackServerContext* context, const v1::CheckpointJobRequest* request,
                                          v1::Job* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchJobs(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes) override;
  grpc::ServerWriteReactor<v1::Event>* ListEvents(grpc::CallbackServerContext* context,
                                                  const v1::ListEventsRequest* request) override;
  grpc::ServerWriteReactor<v1::LogChunk>* TailLogs(grpc::CallbackServerContext* context,
                                                   const v1::TailLogsRequest* request) override;
  grpc::ServerUnaryReactor* GetDiagnosis(grpc::CallbackServerContext* context, const v1::GetDiagnosisRequest* request,
                                         v1::JobDiagnosis* response) override;
  grpc::ServerWriteReactor<v1::TraceChunk>* ProfileJob(grpc::CallbackServerContext* context,
                                                       const v1::ProfileJobRequest* request) override;

 private:
  std::vector<scheduler::Misfit> misfits_of(const CheckedSpec& checked) const;
  // Admits a call that names a job.
  absl::StatusOr<auth::Caller> admit(const grpc::ServerContextBase& context, const char* method,
                                     const std::string& job) const;
  // Ends the stream once the caller's token or certificate is no longer valid.
  template <typename Message>
  void end_when_revoked(const auth::Caller& caller, Stream<Message>& stream);
  absl::StatusOr<reconcile::JobViewPtr> find(const std::string& name) const;

  reconcile::Reconciler& reconciler_;
  store::Store& store_;
  Routers& answers_;
  reconcile::Wakers& ticks_;
  const std::function<std::string()> new_id_;
  const auth::Gate& gate_;
  // Watchers read memory, followers of events read the disk: no watcher waits for a follower.
  const std::shared_ptr<Fanout> watchers_, followers_;
};

}  // namespace titan::api
