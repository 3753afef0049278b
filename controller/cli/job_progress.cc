#include "controller/cli/job_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controller/cli/client.h"
#include "controller/cli/job_text.h"
#include "controller/cli/output.h"
#include "controller/cli/terminal.h"
#include "google/protobuf/timestamp.pb.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

constexpr absl::Duration kMinStall = absl::Seconds(60);
constexpr int kReportsMissing = 5;

// Returns the number of ranks of the newest attempt.
int world_size_of(const v1::Job& job) {
  const int world = job.attempts().empty() ? 0 : job.attempts().rbegin()->ranks();
  return world > 0 ? world : job.spec().ranks();  // An older controller does not report it.
}

absl::Time time_of(const google::protobuf::Timestamp& stamp) {
  return absl::FromUnixSeconds(stamp.seconds()) + absl::Nanoseconds(stamp.nanos());
}

double number_at(const nlohmann::json& config, const char* section, const char* key) {
  if (!config.is_object() || !config.contains(section) || !config[section].is_object()) return 0;
  const auto found = config[section].find(key);
  return found != config[section].end() && found->is_number() ? found->get<double>() : 0;
}

// Returns the rows of a step: training.global_batch_size, or if that is not set (-1), a batch for every data-parallel
// rank.
double rows_of(const nlohmann::json& config) {
  const double set = number_at(config, "training", "global_batch_size");
  if (set >= 0) return set;
  return number_at(config, "training", "local_batch_size") *
         number_at(config, "parallelism", "data_parallel_replicate_degree") *
         number_at(config, "parallelism", "data_parallel_shard_degree");
}

bool trains(v1::Job::State state) { return state == v1::Job::RUNNING || state == v1::Job::CHECKPOINTING; }

}  // namespace

Pace pace_of(const v1::Job& job, absl::Time now) {
  Pace pace;
  if (!job.attempts().empty() && job.attempts(0).has_start_time()) {
    pace.elapsed = (job.has_end_time() ? time_of(job.end_time()) : now) - time_of(job.attempts(0).start_time());
  }
  const v1::Progress& progress = job.progress();
  if (!trains(job.state()) || !progress.has_update_time()) return pace;
  pace.since_step = std::max(absl::ZeroDuration(), now - time_of(progress.update_time()));

  const auto config = nlohmann::json::parse(job.spec().config_json(), nullptr, /*allow_exceptions=*/false);
  const double tokens = rows_of(config) * number_at(config, "training", "seq_len");
  const double per_second = progress.tokens_per_second() * world_size_of(job);  // The figure is per device.
  if (tokens <= 0 || !(per_second > 0)) return pace;
  pace.step = absl::Seconds(tokens / per_second);
  const int64_t steps = std::max<int64_t>(0, progress.total_steps() - progress.step());
  pace.left = std::max(absl::ZeroDuration(), *pace.step * steps - *pace.since_step);
  const double reported_each = std::max(1.0, number_at(config, "metrics", "log_freq"));
  pace.stalled = *pace.since_step > std::max(kMinStall, *pace.step * (reported_each * kReportsMissing));
  return pace;
}

namespace {

constexpr size_t kMaxLength = 79;
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
  std::fputs(absl::StrCat(kClearLine, cut(shown(progress_text(job)), kMaxLength)).c_str(), stderr);
  is_there_ = true;
}

void ProgressLine::clear() {
  if (is_there_) std::fputs(kClearLine, stderr);
  is_there_ = false;
}

}  // namespace titan::cli
