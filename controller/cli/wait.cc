#include "controller/cli/wait.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_progress.h"
#include "controller/cli/message_json.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

// Parses the N of "KEY=N".
absl::StatusOr<int64_t> number_of(const char* key, absl::string_view text) {
  int64_t number = -1;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  return absl::InvalidArgumentError(absl::StrCat("--for ", key, "=N: N must be an integer of at least 0"));
}

}  // namespace

absl::StatusOr<WaitTarget> WaitTarget::parse(const std::string& text) {
  WaitTarget target;
  target.text_ = text;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "step=")) {
    TITAN_ASSIGN_OR_RETURN(target.step_, number_of("step", rest));
  } else if (absl::ConsumePrefix(&rest, "committed=")) {
    TITAN_ASSIGN_OR_RETURN(target.committed_, number_of("committed", rest));
  } else if (!text.empty()) {
    TITAN_ASSIGN_OR_RETURN(const v1::Job::State state, parse_state(text));
    target.state_ = state_name(state);
  }
  return target;
}

bool WaitTarget::reached(const v1::Job& job) const {
  if (step_ >= 0) return job.progress().step() >= step_;
  if (committed_ >= 0) return job.progress().committed_step() >= committed_;
  return !state_.empty() && state_name(job.state()) == state_;
}

absl::Status WaitTarget::check(const v1::Job& job) const {
  const int64_t last = job.progress().total_steps();
  if (last <= 0 || std::max(step_, committed_) <= last) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("job ", short_name(job.name()), " ends at step ", last, ": it never reaches ", text_));
}

int wait(const Globals& globals, const std::string& job, const std::string& until) {
  Interrupt::block_signals();
  const auto target = WaitTarget::parse(until);
  if (!target.ok()) return report(target.status());
  ControllerClient client(globals.controller, globals.timeout, globals.access);
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
  if (globals.format != OutputFormat::kTable) print(job_json(*seen), globals.format);
  if (!target->is_end() && target->reached(*seen)) return kExitOk;
  const int code = report_end(*seen);
  return target->is_end() ? code : static_cast<int>(kExitFailed);
}

}  // namespace titan::cli
