#include "controller/cli/watch.h"

#include <unistd.h>

#include <mutex>

#include "absl/strings/str_cat.h"
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

absl::StatusOr<v1::Job> watch_job(Client& client, const std::string& name, absl::Time deadline, Stopper& stopper,
                                  const std::function<bool(const v1::Job&)>& seen) {
  v1::Job found;
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
        if (!seen(change.job())) return false;
        found = change.job();
        done = true;
        return true;
      });
  if (!status.ok()) return status;
  if (!done) return absl::InternalError(absl::StrCat("the controller ended the watch of ", name));
  return found;
}

int report_end(const v1::Job& job) {
  const std::string name = short_name(job.name());
  if (job.state() == v1::Job::SUCCEEDED) {
    note(absl::StrCat("job ", name, " ", paint(STDERR_FILENO, Paint::kGreen, "SUCCEEDED"), " at step ",
                      job.progress().step()));
    return kExitOk;
  }
  std::string text = absl::StrCat("job ", name, " ", state_name(job.state()));
  if (!job.failure_reason().empty()) absl::StrAppend(&text, ": ", job.failure_reason(), ": ", job.failure_message());
  complain(text);
  note(absl::StrCat("  `titanctl describe ", name, "` shows every attempt and its cause, `titanctl logs ", name,
                    "` what it printed"));
  return kExitFailed;
}

}  // namespace titan::cli
