#include "controller/cli/run.h"

#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/config/validate.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/local_cluster.h"
#include "controller/cli/log_printer.h"
#include "controller/cli/run_folder.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

constexpr absl::Duration kKillTimeout = absl::Seconds(2);

// What went on besides the log: restarts, refused checkpoints, errors.
void tell_warnings(Client& client, const std::string& job, Stopper& stopper) {
  const auto status = stream_events(client, {.job = job, .follow = true}, stopper, [](const v1::Event& event) {
    if (event.severity() == "warning" || event.severity() == "error") warn(event.reason() + ": " + event.message());
    return true;
  });
  if (!status.ok() && !absl::IsCancelled(status)) note("events: " + std::string(status.message()));
}

class Run {
 public:
  Run(const Globals& globals, const RunOptions& options) : globals_(globals), options_(options) {}

  int run() {
    auto prepared = prepare(options_.source);
    if (!prepared.ok()) return report(prepared.status());
    config::JobConfig& config = prepared->loaded.config;
    config.resources.ranks_per_node = config.resources.ranks;  // There is one node.
    devices_ = config::processes(config);
    Interrupt::block_signals();
    clean_run_folders(run_base(), absl::Now());
    const auto folder = RunFolder::make(run_base());
    if (!folder.ok()) return report(folder.status());
    folder_ = folder->get();
    if (options_.keep_state) folder_->keep();
    const Interrupt interrupt([this](int count) { interrupted(count); });
    const int code = run_in(folder_->path(), to_spec(*prepared));
    if (code == kExitOk && !options_.keep_state) {
      folder_->remove();
    } else {
      note("logs of the private daemons: " + folder_->path());
    }
    return interrupt.count() > 0 ? static_cast<int>(kExitInterrupted) : code;
  }

 private:
  int run_in(const std::string& folder, v1::JobSpec spec) {
    auto cluster = LocalCluster::start(
        {.folder = folder, .device = spec.device(), .devices = devices_, .on_failure = [this](const std::string& text) {
           daemon_failed(text);
         }});
    if (!cluster.ok()) return report(cluster.status());
    Client client((*cluster)->controller(), globals_.timeout);
    v1::CreateJobRequest request;
    *request.mutable_spec() = std::move(spec);
    request.set_request_id(make_request_id());
    const auto job = client.create_job(request);
    if (!job.ok()) return report(job.status());
    set_job(client, job->name());

    std::thread warnings([&] { tell_warnings(client, job->name(), events_); });
    const int code = follow(client, *job);
    events_.cancel();
    warnings.join();
    clear_job();
    (*cluster)->stop(absl::Seconds(5));
    return code;
  }

  int follow(Client& client, const v1::Job& job) {
    LogsOptions options{
        .job = job.name(), .follow = true, .ranks = options_.all_ranks ? std::vector<int>{} : std::vector<int>{0}};
    LogPrinter printer(/*prefix_ranks=*/options_.all_ranks, /*announce_attempts=*/true);
    const absl::Status logs = printer.stream(client, options, stopper_);
    if (!logs.ok() && !absl::IsCancelled(logs)) warn("the log ends here: " + std::string(logs.message()));
    const auto ended = watch_job(client, job.name(), absl::InfiniteFuture(), stopper_,
                                 [](const v1::Job& seen) { return is_final(seen.state()); });
    if (ended.ok()) return report_end(*ended, where_to_look());
    if (!failure().empty()) complain(failure());
    return kExitFailed;
  }

  // The private controller is gone when somebody reads this.
  std::string where_to_look() const {
    const std::string logs = folder_->rank_logs();
    return logs.empty() ? "" : absl::StrCat("what the ranks printed: ", logs, "/rank-*.log");
  }

  void set_job(Client& client, const std::string& name) {
    const std::lock_guard lock(mutex_);
    client_ = &client;
    job_ = name;
  }

  void clear_job() {
    const std::lock_guard lock(mutex_);
    client_ = nullptr;
  }

  void interrupted(int count) {
    const std::lock_guard lock(mutex_);
    if (count == 1 && client_ != nullptr) {
      note("\nsaving at the next step edge, then stopping; Ctrl-C again kills");
      const auto job = client_->cancel_job(job_, /*now=*/false);
      if (!job.ok()) report(job.status());
      return;
    }
    if (client_ != nullptr) {
      note("\nkilling the ranks");
      Client impatient(client_->address(), kKillTimeout);
      if (!impatient.cancel_job(job_, /*now=*/true).ok() || count > 2) stopper_.cancel();
    } else {
      stopper_.cancel();
    }
  }

  void daemon_failed(const std::string& text) {
    {
      const std::lock_guard lock(failure_mutex_);
      failure_ = text;
    }
    stopper_.cancel();
  }

  std::string failure() {
    const std::lock_guard lock(failure_mutex_);
    return failure_;
  }

  const Globals& globals_;
  const RunOptions& options_;
  RunFolder* folder_ = nullptr;
  int devices_ = 1;  // Of the private node.
  Stopper stopper_;  // The log and the watch of the job.
  Stopper events_;
  std::mutex mutex_;
  Client* client_ = nullptr;  // While the job lives.
  std::string job_;
  std::mutex failure_mutex_;
  std::string failure_;
};

}  // namespace

int run(const Globals& globals, const RunOptions& options) { return Run(globals, options).run(); }

}  // namespace titan::cli
