#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_json.h"
#include "controller/cli/save_outcome.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

int report_failed_save(const v1::Job& job, const absl::Status& outcome) {
  if (is_final(job.state())) return report_end(job) == kExitOk ? report(outcome) : static_cast<int>(kExitFailed);
  const std::string name = short_name(job.name());
  return report(outcome, absl::StrCat("`titanctl describe ", name, "` shows the job, `titanctl checkpoint ", name,
                                      " --wait` tries again"));
}

int wait_for_save(const Globals& globals, Client& client, const v1::Job& asked) {
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
  if (globals.format != Format::kTable) print(job_json(*job), globals.format);
  return kExitOk;
}

}  // namespace

int checkpoint(const Globals& globals, const std::string& name, bool wait) {
  if (wait) Interrupt::block_signals();
  Client client(globals.controller, globals.timeout, globals.access);
  const auto job = client.checkpoint_job(name);
  if (!job.ok()) return report(job.status());
  if (wait) return wait_for_save(globals, client, *job);
  note(absl::StrCat("job ", short_name(job->name()), " saves at its next step edge; `titanctl events -f ",
                    short_name(job->name()), "` shows the commit"));
  if (globals.format != Format::kTable) print(job_json(*job), globals.format);
  return kExitOk;
}

}  // namespace titan::cli
