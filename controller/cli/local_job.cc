#include "controller/cli/local_job.h"

#include <utility>

#include "common/base/status/status.h"

namespace titan::cli {

absl::Status LocalJob::start(const std::string& folder, v1::JobSpec spec, int devices) {
  const auto on_failure = [this](const std::string& text) { daemon_failed(text); };
  TITAN_ASSIGN_OR_RETURN(
      cluster_,
      LocalCluster::start({.folder = folder, .device = spec.device(), .devices = devices, .on_failure = on_failure}));
  client_ = std::make_unique<Client>(cluster_->controller(), globals_.timeout);
  v1::CreateJobRequest request;
  *request.mutable_spec() = std::move(spec);
  request.set_request_id(make_request_id());
  TITAN_ASSIGN_OR_RETURN(const v1::Job job, client_->create_job(request));
  const std::lock_guard lock(mutex_);
  name_ = job.name();
  runs_ = true;
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> LocalJob::wait(const std::function<bool(const v1::Job&)>& seen) {
  auto job = watch_job(*client_, name_, absl::InfiniteFuture(), stopper_, seen);
  if (job.ok()) return job;
  if (const std::string text = failure(); !text.empty()) return absl::InternalError(text);
  return job;
}

absl::Status LocalJob::cancel(bool now, std::optional<absl::Duration> timeout) {
  const std::lock_guard lock(mutex_);
  if (!runs_) return absl::FailedPreconditionError("no job runs");
  Client client(client_->address(), timeout.value_or(globals_.timeout));
  return client.cancel_job(name_, now).status();
}

bool LocalJob::runs() {
  const std::lock_guard lock(mutex_);
  return runs_;
}

void LocalJob::stop() {
  {
    const std::lock_guard lock(mutex_);
    runs_ = false;
  }
  cluster_.reset();  // Waits for what daemon_failed() still does.
}

void LocalJob::daemon_failed(const std::string& text) {
  {
    const std::lock_guard lock(failure_mutex_);
    failure_ = text;
  }
  stopper_.cancel();
}

std::string LocalJob::failure() {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

}  // namespace titan::cli
