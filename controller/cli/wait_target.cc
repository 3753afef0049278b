#include "controller/cli/wait_target.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "controller/cli/client.h"
#include "controller/cli/job_json.h"

namespace titan::cli {
namespace {

// Of "KEY=N".
absl::StatusOr<int64_t> number_of(const char* key, absl::string_view text) {
  int64_t number = -1;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  return absl::InvalidArgumentError(absl::StrCat("--for ", key, "=N: N must be a whole number of at least 0"));
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

}  // namespace titan::cli
