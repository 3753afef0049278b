#include "controller/cli/run.h"

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/local_job.h"
#include "controller/cli/logs.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

constexpr absl::Duration kKillTimeout = absl::Seconds(2);

// Returns whether ranks print events with this reason in their logs.
bool is_in_logs(const std::string& reason) {
  return reason == "RankWarning" || reason == "RankError" || reason == "CheckpointRejected" ||
         reason == "CheckpointFailed";
}

// Reports what is not in the log: restarts, refused checkpoints, errors. Everything is reported once: a rank's own
// words are in its log, and the end of the job is reported at the end.
class EventReporter {
 public:
  explicit EventReporter(bool shows_all_logs) : shows_all_logs_(shows_all_logs) {}

  void take(const v1::Event& event) {
    if (event.reason() == "JobFailed") return ending_.clear();
    if (!ending_.empty()) warn(std::exchange(ending_, ""));
    if (event.severity() != "warning" && event.severity() != "error") return;
    const bool is_ranks_word = is_in_logs(event.reason());
    if (is_ranks_word && !said_.insert({event.attempt(), event.message()}).second) return;
    if (is_ranks_word && (shows_all_logs_ || event.rank() == 0)) return;
    if (event.reason() == "RankExited" && was_said(event)) return;
    const std::string text = event.reason() + ": " + event.message();
    if (event.reason() == "AttemptEnded") {
      ending_ = text;  // Reported once something follows that is not the job's end.
    } else {
      warn(text);
    }
  }

 private:
  // The message of a rank's exit ends with what the rank printed about its error.
  bool was_said(const v1::Event& exit) const {
    return std::any_of(said_.begin(), said_.end(), [&exit](const auto& said) {
      return said.first == exit.attempt() && absl::EndsWith(exit.message(), said.second);
    });
  }

  const bool shows_all_logs_;
  std::set<std::pair<int, std::string>> said_;  // Messages of ranks, by attempt.
  std::string ending_;
};

void report_events(ControllerClient& client, const std::string& job, bool shows_all_logs, Stopper& stopper) {
  EventReporter troubles(shows_all_logs);
  const auto status = stream_events(client, {.job = job, .follow = true}, stopper, [&](const v1::Event& event) {
    troubles.take(event);
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
    Interrupt::block_signals();
    const absl::StatusOr<std::string> base = run_base();
    if (!base.ok()) return report(base.status());
    clean_run_folders(*base, absl::Now());
    const auto folder = RunFolder::make(*base);
    if (!folder.ok()) return report(folder.status());
    folder_ = folder->get();
    if (options_.keep_state) folder_->keep();
    const Interrupt interrupt([this](int count) { interrupted(count); });
    const int code = run_in(folder_->path(), *prepared);
    if (code == kExitOk && !options_.keep_state) {
      folder_->remove();
    } else {
      note(absl::StrCat("logs of the private daemons: ", folder_->path(),
                        options_.keep_state ? ""
                                            : absl::StrCat(" (kept while it is one of the newest ", kMaxRunFolders,
                                                           "; `--keep-state` keeps it)")));
    }
    return interrupt.count() > 0 ? static_cast<int>(kExitInterrupted) : code;
  }

 private:
  int run_in(const std::string& folder, const Prepared& prepared) {
    if (const absl::Status started = job_.start(folder, prepared); !started.ok()) return report(started);
    std::thread warnings([&] { report_events(job_.client(), job_.name(), options_.all_ranks, events_); });
    const int code = follow();
    events_.cancel();
    warnings.join();
    job_.stop();
    return code;
  }

  int follow() {
    LogsOptions options{
        .job = job_.name(), .follow = true, .ranks = options_.all_ranks ? std::vector<int>{} : std::vector<int>{0}};
    LogPrinter printer(/*prefix_ranks=*/options_.all_ranks, /*announce_attempts=*/true);
    const absl::Status logs = printer.stream(job_.client(), options, stopper_);
    if (!logs.ok() && !absl::IsCancelled(logs)) warn("the log ends here: " + std::string(logs.message()));
    const auto ended = job_.wait([](const v1::Job& seen) { return is_final(seen.state()); });
    if (ended.ok()) return report_end(*ended, where_to_look());
    if (absl::IsInternal(ended.status())) complain(std::string(ended.status().message()));
    return kExitFailed;
  }

  // The private controller is gone when the user reads this.
  std::string where_to_look() const {
    const std::string logs = folder_->rank_logs();
    return logs.empty() ? "" : absl::StrCat("what the ranks printed: ", logs, "/rank-*.log");
  }

  void interrupted(int count) {
    if (!job_.runs()) return stopper_.cancel();
    if (count == 1) {
      note("\nsaving at the next step edge, then stopping; Ctrl-C again kills");
      const absl::Status asked = job_.cancel(/*now=*/false);
      if (!asked.ok()) report(asked);
      return;
    }
    note("\nkilling the ranks");
    if (!job_.cancel(/*now=*/true, kKillTimeout).ok() || count > 2) stopper_.cancel();
  }

  const Globals& globals_;
  const RunOptions& options_;
  RunFolder* folder_ = nullptr;
  Stopper stopper_;  // Stops the log and the watch of the job.
  Stopper events_;
  LocalJob job_{globals_, stopper_};
};

}  // namespace

int run(const Globals& globals, const RunOptions& options) { return Run(globals, options).run(); }

}  // namespace titan::cli
