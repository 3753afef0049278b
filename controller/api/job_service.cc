#include "controller/api/job_service.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/plan/planner/memory_fit.h"
#include "common/service/rpc/server.h"
#include "controller/api/admit_first.h"
#include "controller/api/convert.h"
#include "controller/api/event_stream.h"
#include "controller/api/job_list.h"
#include "controller/api/job_requests.h"
#include "controller/api/job_spec.h"
#include "controller/api/job_watch.h"
#include "controller/api/log_tail.h"
#include "controller/api/trace_stream.h"

namespace titan::api {

using reconcile::JobViewPtr;

namespace {

absl::Status no_fit(const std::vector<scheduler::Misfit>& misfits) {
  std::vector<rpc::PreconditionViolation> violations;
  for (const scheduler::Misfit& misfit : misfits) violations.push_back({misfit.reason, "job", misfit.message});
  return rpc::precondition_failure(
      misfits[0].reason, absl::StrCat("the job cannot run on the present nodes: ", misfits[0].message), violations);
}

constexpr char kNoProject[] = "-";  // Stands in for the project of a malformed name; no job has it.

std::vector<scheduler::Misfit> config_warnings(const CheckedSpec& checked) {
  std::vector<scheduler::Misfit> warnings;
  for (const std::string& warning : checked.warnings) warnings.push_back({"CONFIG_WARNING", warning});
  return warnings;
}

// Returns the number of the requested attempt, or of the newest diagnosed one if `asked` is 0. Returns 0 if there is
// none, or the requested one was not diagnosed.
int diagnosed_attempt(const reconcile::JobView& view, int asked) {
  int found = 0;
  for (const auto& attempt : view.attempts) {
    if (attempt->diagnosed && (asked == 0 || attempt->number == asked)) found = attempt->number;
  }
  return found;
}

// A stream that ends at once.
template <typename Message>
class EmptyStream : public grpc::ServerWriteReactor<Message> {
 public:
  explicit EmptyStream(const grpc::Status& why) { this->Finish(why); }
  explicit EmptyStream(const absl::Status& why) : EmptyStream(rpc::to_grpc(why)) {}
  void OnDone() override { delete this; }
};

}  // namespace

JobService::JobService(reconcile::Reconciler& reconciler, store::Store& store, Routers& answers,
                       reconcile::Wakers& ticks, std::function<std::string()> new_id, const auth::Gate& gate)
    : reconciler_(reconciler),
      store_(store),
      answers_(answers),
      ticks_(ticks),
      new_id_(std::move(new_id)),
      gate_(gate),
      watchers_(std::make_shared<Fanout>(reconciler.published())),
      followers_(std::make_shared<Fanout>(reconciler.published())) {
  admit_first([this](int index, auto* handler) { MarkMethodStreamed(index, handler); }, *this, gate,
              &JobService::CreateJob, &JobService::GetJob, &JobService::ListJobs, &JobService::UpdateJob,
              &JobService::CancelJob, &JobService::DeleteJob, &JobService::CheckpointJob, &JobService::ProfileJob,
              &JobService::WatchJobs, &JobService::ListEvents, &JobService::GetDiagnosis, &JobService::TailLogs);
  reconciler_.published().wakers().add(watchers_);
  reconciler_.published().wakers().add(followers_);
}

absl::StatusOr<JobViewPtr> JobService::find(const std::string& name) const {
  if (name.empty()) return name_missing_error("job");
  JobViewPtr view = reconciler_.published().find_by_name(full_job_name(name));
  if (view != nullptr) return view;
  return reconcile::no_such_job(full_job_name(name));
}

absl::StatusOr<auth::Caller> JobService::admit(const grpc::ServerContextBase& context, const char* method,
                                               const std::string& job) const {
  const std::string name = full_job_name(job);
  const absl::string_view project = auth::project_of(name);
  return gate_.admit(context, method, project.empty() ? kNoProject : project);
}

std::vector<scheduler::Misfit> JobService::misfits_of(const CheckedSpec& checked) const {
  std::vector<scheduler::Misfit> found;
  if (std::optional<scheduler::Misfit> misfit = reconciler_.misfit(checked.spec)) found.push_back(*std::move(misfit));
  const auto too_small = planner::memory_misfit(checked.config, reconciler_.node_memory(checked.spec.device));
  if (too_small) found.push_back({"MEMORY_TOO_SMALL", *too_small});
  return found;
}

grpc::ServerUnaryReactor* JobService::CreateJob(grpc::CallbackServerContext* context,
                                                const v1::CreateJobRequest* request, v1::Job* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "JobService.CreateJob"));
    TITAN_ASSIGN_OR_RETURN(CheckedSpec checked, check_request(*request, new_id_));
    TITAN_RETURN_IF_ERROR(auth::check(caller, "JobService.CreateJob", checked.spec.project));
    const std::vector<scheduler::Misfit> misfits = misfits_of(checked);
    const absl::Status unfit = request->require_fit() && !misfits.empty() ? no_fit(misfits) : absl::OkStatus();
    const std::string& actor = caller.actor;
    if (request->validate_only()) {
      TITAN_RETURN_IF_ERROR(unfit);
      TITAN_ASSIGN_OR_RETURN(const JobViewPtr view, reconciler_.would_create(checked.spec));
      *response = to_proto(*view);
      response->set_owner(actor);
      *response->mutable_labels() = request->labels();
      response->mutable_spec()->set_config_json(checked.stored.config_json());
      response->mutable_spec()->set_config_source(checked.stored.config_source());
      add_warnings(misfits, *response);
      add_warnings(config_warnings(checked), *response);
      return rpc::finish_now(reactor);
    }
    const auto fill = [response, misfits, of_text = config_warnings(checked)](const JobViewPtr& view) {
      *response = to_proto(*view);
      add_warnings(misfits, *response);
      add_warnings(of_text, *response);
    };
    core::CreateJob wanted;
    wanted.spec = std::move(checked.spec);
    wanted.stored = checked.stored.SerializeAsString();
    wanted.request_id = request->request_id();
    wanted.fingerprint = fingerprint(*request);
    wanted.actor = actor;
    wanted.labels = {request->labels().begin(), request->labels().end()};
    wanted.run_as = caller.unix_user;
    wanted.run_as_local = caller.is_local;
    wanted.unfit = unfit;
    reconciler_.create(std::move(wanted), rpc::finish<JobViewPtr>(reactor, fill));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobService::GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                             v1::Job* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_RETURN_IF_ERROR(admit(*context, "JobService.GetJob", request->name()).status());
    TITAN_ASSIGN_OR_RETURN(const JobViewPtr view, find(request->name()));
    TITAN_ASSIGN_OR_RETURN(const v1::JobSpec spec, reconciler_.stored_spec(view->record->uid));
    *response = to_proto(*view);
    response->mutable_spec()->set_config_json(spec.config_json());
    response->mutable_spec()->set_config_source(spec.config_source());
    return rpc::finish_now(reactor);
  });
}

grpc::ServerUnaryReactor* JobService::ListJobs(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                               v1::ListJobsResponse* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, gate_.admit(*context, "JobService.ListJobs"));
    TITAN_RETURN_IF_ERROR(list_jobs(reconciler_.published(), *request, caller, absl::Now(), *response));
    return rpc::finish_now(reactor);
  });
}

grpc::ServerUnaryReactor* JobService::UpdateJob(grpc::CallbackServerContext* context,
                                                const v1::UpdateJobRequest* request, v1::Job* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, admit(*context, "JobService.UpdateJob", request->job().name()));
    TITAN_ASSIGN_OR_RETURN(core::UpdateJob update, read_update(*request));
    TITAN_ASSIGN_OR_RETURN(const JobViewPtr view, find(request->job().name()));
    update.uid = view->record->uid;
    update.actor = caller.actor;
    if (request->validate_only()) {
      TITAN_ASSIGN_OR_RETURN(const JobViewPtr as_it_would_be, reconciler_.would_update(update));
      *response = to_proto(*as_it_would_be);
      return rpc::finish_now(reactor);
    }
    reconciler_.update(std::move(update), rpc::finish<JobViewPtr>(reactor, [response](const JobViewPtr& job) {
                         *response = to_proto(*job);
                       }));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobService::CancelJob(grpc::CallbackServerContext* context,
                                                const v1::CancelJobRequest* request, v1::Job* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, admit(*context, "JobService.CancelJob", request->name()));
    TITAN_ASSIGN_OR_RETURN(const JobViewPtr view, find(request->name()));
    reconciler_.cancel(
        view->record->uid, request->now(),
        rpc::finish<JobViewPtr>(reactor, [response](const JobViewPtr& job) { *response = to_proto(*job); }),
        caller.actor, request->request_id());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobService::DeleteJob(grpc::CallbackServerContext* context,
                                                const v1::DeleteJobRequest* request, v1::Job* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, admit(*context, "JobService.DeleteJob", request->name()));
    const std::string name = full_job_name(request->name());
    const auto answer = [=, allow_missing = request->allow_missing()](const absl::StatusOr<JobViewPtr>& job) {
      if (job.ok()) *response = to_proto(**job);
      const bool missing = allow_missing && absl::IsNotFound(job.status());
      if (missing) response->set_name(name);
      reactor->Finish(missing ? grpc::Status::OK : rpc::to_grpc(job.status()));
    };
    const absl::StatusOr<JobViewPtr> view = find(request->name());
    if (!view.ok()) {
      answer(view);
    } else {
      reconciler_.remove((*view)->record->uid, answer, caller.actor);
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobService::CheckpointJob(grpc::CallbackServerContext* context,
                                                    const v1::CheckpointJobRequest* request, v1::Job* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const auth::Caller caller, admit(*context, "JobService.CheckpointJob", request->name()));
    TITAN_ASSIGN_OR_RETURN(const JobViewPtr view, find(request->name()));
    reconciler_.checkpoint(
        view->record->uid,
        rpc::finish<JobViewPtr>(reactor, [response](const JobViewPtr& job) { *response = to_proto(*job); }),
        caller.actor);
    return absl::OkStatus();
  });
}

template <typename Message>
void JobService::end_when_revoked(const auth::Caller& caller, Stream<Message>& stream) {
  if (!caller.token.empty() || !caller.certificate.empty())
    ticks_.add(stream.guard([this, caller] { return gate_.stands(caller); }));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* JobService::WatchJobs(grpc::CallbackServerContext* context,
                                                                  const grpc::ByteBuffer* bytes) {
  v1::WatchJobsRequest request;
  grpc::ByteBuffer copy = *bytes;
  const grpc::Status read = grpc::SerializationTraits<v1::WatchJobsRequest>::Deserialize(&copy, &request);
  if (!read.ok())
    return new EmptyStream<grpc::ByteBuffer>(undecodable_request(v1::WatchJobsRequest::descriptor()->full_name()));
  if (const absl::Status wrong = check_fields(request); !wrong.ok()) return new EmptyStream<grpc::ByteBuffer>(wrong);
  const std::string name = request.name().empty() ? "" : full_job_name(request.name());
  const absl::StatusOr<auth::Caller> caller =
      name.empty() ? gate_.admit(*context, "JobService.WatchJobs") : admit(*context, "JobService.WatchJobs", name);
  if (!caller.ok()) return new EmptyStream<grpc::ByteBuffer>(caller.status());
  auto stream = std::make_shared<JobWatch>(reconciler_.published(), name, request.revision(), *caller);
  ticks_.add(stream->bookmarks());
  watchers_->add(name, stream);
  end_when_revoked(*caller, *stream);
  stream->begin();
  return stream.get();
}

grpc::ServerWriteReactor<v1::Event>* JobService::ListEvents(grpc::CallbackServerContext* context,
                                                            const v1::ListEventsRequest* request) {
  const absl::StatusOr<auth::Caller> caller = request->job().empty()
                                                  ? gate_.admit(*context, "JobService.ListEvents")
                                                  : admit(*context, "JobService.ListEvents", request->job());
  if (!caller.ok()) return new EmptyStream<v1::Event>(caller.status());
  auto stream = std::make_shared<EventStream>(reconciler_, store_, *request, *caller);
  if (request->follow()) followers_->add(request->job().empty() ? "" : full_job_name(request->job()), stream);
  end_when_revoked(*caller, *stream);
  stream->begin();
  return stream.get();
}

grpc::ServerUnaryReactor* JobService::GetDiagnosis(grpc::CallbackServerContext* context,
                                                   const v1::GetDiagnosisRequest* request, v1::JobDiagnosis* response) {
  return rpc::answer(context, [=, this](grpc::ServerUnaryReactor* reactor) -> absl::Status {
    TITAN_RETURN_IF_ERROR(admit(*context, "JobService.GetDiagnosis", request->name()).status());
    TITAN_ASSIGN_OR_RETURN(const JobViewPtr view, find(request->name()));
    const int attempt = diagnosed_attempt(*view, request->attempt());
    if (attempt == 0) {
      return rpc::error(absl::StatusCode::kNotFound, "NOT_DIAGNOSED",
                        absl::StrCat("none of the requested attempts of job ", request->name(), " stalled or failed ",
                                     "in a collective: `titanctl describe` shows how each one ended"));
    }
    TITAN_ASSIGN_OR_RETURN(const job::DiagnosisRecord record, reconciler_.diagnosis(view->record->uid, attempt));
    *response = to_proto(record);
    return rpc::finish_now(reactor);
  });
}

grpc::ServerWriteReactor<v1::LogChunk>* JobService::TailLogs(grpc::CallbackServerContext* context,
                                                             const v1::TailLogsRequest* request) {
  const absl::StatusOr<auth::Caller> caller = admit(*context, "JobService.TailLogs", request->name());
  if (!caller.ok()) return new EmptyStream<v1::LogChunk>(caller.status());
  auto stream = std::make_shared<LogTail>(reconciler_, store_, answers_.logs, *request);
  ticks_.add(stream);
  end_when_revoked(*caller, *stream);
  stream->begin();
  return stream.get();
}

grpc::ServerWriteReactor<v1::TraceChunk>* JobService::ProfileJob(grpc::CallbackServerContext* context,
                                                                 const v1::ProfileJobRequest* request) {
  const absl::StatusOr<auth::Caller> caller = admit(*context, "JobService.ProfileJob", request->name());
  if (!caller.ok()) return new EmptyStream<v1::TraceChunk>(caller.status());
  auto stream = std::make_shared<TraceStream>(reconciler_, answers_.traces, *request);
  ticks_.add(stream);
  absl::StatusOr<JobViewPtr> view = find(request->name());
  if (view.ok()) {
    if (const absl::Status bad = check_profile_request(*request, **view); !bad.ok()) view = bad;
  }
  if (!view.ok() || request->attempt() != 0) {  // A call that resumes was accepted before.
    stream->accept(view);
  } else {
    // Names each rank once: the event lists them, and its length must be bounded by the job's ranks.
    const std::set<int> ranks(request->ranks().begin(), request->ranks().end());
    reconciler_.profile((*view)->record->uid, {ranks.begin(), ranks.end()}, request->steps(),
                        [stream](const absl::StatusOr<JobViewPtr>& job) { stream->accept(job); }, caller->actor);
  }
  end_when_revoked(*caller, *stream);
  stream->begin();
  return stream.get();
}

}  // namespace titan::api
