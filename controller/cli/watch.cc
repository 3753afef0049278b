#include "controller/cli/watch.h"

#include <unistd.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/service/rpc/error.h"
#include "controller/cli/output.h"
#include "controller/cli/terminal.h"

namespace titan::cli {

void Stopper::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (running_ != nullptr) running_->TryCancel();
}

Stopper::Scope::Scope(Stopper& stopper, grpc::ClientContext& context) : stopper_(stopper) {
  const std::lock_guard lock(stopper_.mutex_);
  stopper_.running_ = &context;
  if (stopper_.cancelled_) context.TryCancel();
}

Stopper::Scope::~Scope() {
  const std::lock_guard lock(stopper_.mutex_);
  stopper_.running_ = nullptr;
}

namespace {

// Returns the error for a --timeout that ran out.
absl::Status still_waiting(const ControllerClient& client, const v1::Job& last, absl::Duration waited) {
  if (last.name().empty()) return client.no_answer(waited);
  return absl::DeadlineExceededError(absl::StrCat(
      "job ", short_name(last.name()), " is still ", state_name(last.state()), " at step ", last.progress().step(), "/",
      last.progress().total_steps(), " after ", duration_text(absl::ToDoubleSeconds(waited)),
      last.pending_message().empty() ? "" : absl::StrCat(": ", last.pending_message())));
}

}  // namespace

absl::StatusOr<v1::Job> watch_job(ControllerClient& client, const std::string& name, absl::Time deadline,
                                  Stopper& stopper, const std::function<bool(const v1::Job&)>& seen) {
  const absl::Time start = absl::Now();
  v1::Job found, last;
  bool done = false;
  const absl::Status status = follow_stream<v1::JobChange>(
      client, deadline, stopper,
      [&](grpc::ClientContext& context) {
        v1::WatchJobsRequest request;
        request.set_name(name);
        return client.jobs().WatchJobs(&context, request);
      },
      [&](const v1::JobChange& change) {
        if (change.kind() != v1::JobChange::SNAPSHOT && change.kind() != v1::JobChange::CHANGED) return false;
        last = change.job();
        if (!seen(change.job())) return false;
        found = change.job();
        done = true;
        return true;
      });
  if (absl::IsDeadlineExceeded(status)) return still_waiting(client, last, absl::Now() - start);
  if (!status.ok()) return status;
  if (!done) return absl::InternalError(absl::StrCat("the controller ended the watch of ", name));
  return found;
}

std::string nothing_to_do(const v1::Job& job) {
  if (job.state() != v1::Job::SUCCEEDED || job.attempts().empty()) return "";
  const int64_t done = job.attempts().rbegin()->resumed_step(), wanted = job.progress().total_steps();
  if (wanted <= 0 || done < wanted) return "";
  return absl::StrCat("nothing to do: step ", done, " of ", wanted, " is done in ", job.spec().dump_folder(),
                      " (for more steps raise --training.steps; to start over use another --job.dump_folder)");
}

int report_end(const v1::Job& job) {
  const std::string name = short_name(job.name());
  return report_end(
      job, absl::StrCat("`titanctl describe ", name, "` shows every attempt and its cause, `titanctl logs ", name,
                        "` what it printed"));
}

int report_end(const v1::Job& job, std::string_view remedy) {
  const std::string name = short_name(job.name());
  if (job.state() == v1::Job::SUCCEEDED) {
    const std::string nothing = nothing_to_do(job);
    note(absl::StrCat("job ", name, " ", paint(STDERR_FILENO, Paint::kGreen, "SUCCEEDED"),
                      nothing.empty() ? absl::StrCat(" at step ", job.progress().step()) : ": " + nothing));
    return kExitOk;
  }
  std::string text = absl::StrCat("job ", name, " ", state_name(job.state()));
  if (!job.failure_reason().empty()) absl::StrAppend(&text, ": ", job.failure_reason(), ": ", job.failure_message());
  report(rpc::error(absl::StatusCode::kAborted,
                    job.failure_reason().empty() ? state_name(job.state()) : job.failure_reason(), text,
                    {{"job", job.name()}, {"state", state_name(job.state())}}),
         remedy);
  return kExitFailed;
}

}  // namespace titan::cli
