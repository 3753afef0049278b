#include "controller/cli/checkpoint.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/service/rpc/error.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/message_json.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

absl::Status failed(absl::string_view reason, const v1::Job& job, absl::string_view what) {
  return rpc::error(absl::StatusCode::kAborted, reason, absl::StrCat("job ", short_name(job.name()), ": ", what),
                    {{"job", job.name()}, {"state", state_name(job.state())}});
}

int newest_attempt(const v1::Job& job) { return job.attempts().empty() ? 0 : job.attempts().rbegin()->number(); }

// A node that drains lets the attempt save before it ends, and so does a cancel: the save continues in both.
bool may_save(v1::Job::State state) {
  return state == v1::Job::RUNNING || state == v1::Job::CHECKPOINTING || state == v1::Job::STOPPING;
}

std::string how_it_ended(const v1::Job& asked, const v1::Job& now) {
  for (const v1::Attempt& attempt : now.attempts()) {
    if (attempt.number() == newest_attempt(asked) && !attempt.end_cause().empty())
      return absl::StrCat(": ", attempt.end_cause(), attempt.end_message().empty() ? "" : ": ", attempt.end_message());
  }
  return "";
}

}  // namespace

std::optional<absl::Status> save_outcome(const v1::Job& asked, const v1::Job& now) {
  if (now.progress().committed_step() > asked.progress().committed_step()) return absl::OkStatus();
  const std::string& failure = now.progress().failed_save();
  const bool over = now.state() != v1::Job::CHECKPOINTING && now.state() != v1::Job::STOPPING;
  // The same text is a new failure once the job no longer saves.
  if (!failure.empty() && (over || failure != asked.progress().failed_save()))
    return failed("CHECKPOINT_FAILED", now, absl::StrCat("the save failed: ", failure));
  if (is_final(now.state())) return failed("ATTEMPT_ENDED", now, absl::StrCat("it is ", state_name(now.state())));
  if (!may_save(now.state()) || newest_attempt(now) != newest_attempt(asked)) {
    return failed(
        "ATTEMPT_ENDED", now,
        absl::StrCat("attempt ", newest_attempt(asked), " ended before it had saved", how_it_ended(asked, now)));
  }
  if (now.state() == v1::Job::RUNNING)
    return failed("CHECKPOINT_FAILED", now, "the save is over and has left no checkpoint to resume from");
  return std::nullopt;
}

namespace {

int report_failed_save(const v1::Job& job, const absl::Status& outcome) {
  if (is_final(job.state())) return report_end(job) == kExitOk ? report(outcome) : static_cast<int>(kExitFailed);
  const std::string name = short_name(job.name());
  return report(outcome, absl::StrCat("`titanctl describe ", name, "` shows the job, `titanctl checkpoint ", name,
                                      " --wait` tries again"));
}

int wait_for_save(const Globals& globals, ControllerClient& client, const v1::Job& asked) {
  Stopper stopper;
  const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
  std::optional<absl::Status> outcome;
  const auto job =
      watch_job(client, asked.name(), absl::Now() + globals.whole_wait(), stopper, [&](const v1::Job& seen) {
        outcome = save_outcome(asked, seen);
        return outcome.has_value();
      });
  if (absl::IsCancelled(job.status())) return kExitInterrupted;
  if (!job.ok()) return report(job.status());
  if (!outcome->ok()) return report_failed_save(*job, *outcome);
  note(absl::StrCat("step ", job->progress().committed_step(), " is saved under ", job->spec().dump_folder()));
  if (globals.format != OutputFormat::kTable) print(job_json(*job), globals.format);
  return kExitOk;
}

}  // namespace

int checkpoint(const Globals& globals, const std::string& name, bool wait) {
  if (wait) Interrupt::block_signals();
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto job = client.checkpoint_job(name);
  if (!job.ok()) return report(job.status());
  if (wait) return wait_for_save(globals, client, *job);
  note(absl::StrCat("job ", short_name(job->name()), " saves at its next step edge; `titanctl events -f ",
                    short_name(job->name()), "` shows the commit"));
  if (globals.format != OutputFormat::kTable) print(job_json(*job), globals.format);
  return kExitOk;
}

}  // namespace titan::cli
