#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_json.h"
#include "controller/cli/progress_line.h"
#include "controller/cli/terminal.h"
#include "controller/cli/wait_target.h"
#include "controller/cli/watch.h"

namespace titan::cli {

int wait(const Globals& globals, const std::string& job, const std::string& until) {
  Interrupt::block_signals();
  const auto target = WaitTarget::parse(until);
  if (!target.ok()) return report(target.status());
  Client client(globals.controller, globals.timeout, globals.access);
  Stopper stopper;
  const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
  ProgressLine line;
  absl::Status possible;
  const auto seen = watch_job(client, job, absl::Now() + globals.whole_wait(), stopper, [&](const v1::Job& now) {
    line.show(now);
    possible = target->check(now);
    return target->reached(now) || is_final(now.state()) || !possible.ok();
  });
  line.clear();
  if (!seen.ok()) return absl::IsCancelled(seen.status()) ? static_cast<int>(kExitInterrupted) : report(seen.status());
  if (!possible.ok() && !is_final(seen->state())) return report(possible);
  if (globals.format != Format::kTable) print(job_json(*seen), globals.format);
  if (!target->is_end() && target->reached(*seen)) return kExitOk;
  const int code = report_end(*seen);
  return target->is_end() ? code : static_cast<int>(kExitFailed);
}

}  // namespace titan::cli
