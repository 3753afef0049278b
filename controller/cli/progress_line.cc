#include "controller/cli/progress_line.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controller/cli/client.h"
#include "controller/cli/job_pace.h"
#include "controller/cli/job_text.h"
#include "controller/cli/output.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

constexpr size_t kLongest = 79;
constexpr char kClearLine[] = "\r\033[K";

std::string progress_text(const v1::Job& job) {
  const Pace pace = pace_of(job, absl::Now());
  std::string text = absl::StrCat("job ", short_name(job.name()), " ", state_name(job.state()), "  step ",
                                  step_text(job.progress()), "  loss ", loss_text(job.progress()));
  if (job.progress().committed_step() > 0) absl::StrAppend(&text, "  saved ", job.progress().committed_step());
  if (pace.left) absl::StrAppend(&text, "  left ", span_text(pace.left, "~"));
  return text;
}

}  // namespace

ProgressLine::ProgressLine() : works_(can_redraw(STDERR_FILENO)) {}

void ProgressLine::show(const v1::Job& job) {
  if (!works_) return;
  std::fputs(absl::StrCat(kClearLine, cut(shown(progress_text(job)), kLongest)).c_str(), stderr);
  is_there_ = true;
}

void ProgressLine::clear() {
  if (is_there_) std::fputs(kClearLine, stderr);
  is_there_ = false;
}

}  // namespace titan::cli
