#include "controller/cli/job_text.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/text/message_text.h"
#include "common/base/text/quantities.h"
#include "common/base/text/utf8.h"
#include "common/rank_protocol/failed_ranks.h"
#include "common/rank_protocol/flight.h"
#include "controller/cli/client.h"
#include "controller/cli/job_progress.h"
#include "controller/cli/output.h"
#include "controller/cli/watch.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

constexpr size_t kProblemsShown = 5;
constexpr int kMore = 7;  // Indentation of further lines about an attempt.

std::string placement_text(const v1::Attempt& attempt) {
  return absl::StrJoin(attempt.placements(), ", ", [](std::string* out, const v1::Placement& place) {
    absl::StrAppend(out, place.node(), " (rank", place.num_ranks() == 1 ? " " : "s ", place.first_rank());
    if (place.num_ranks() > 1) absl::StrAppend(out, "-", place.first_rank() + place.num_ranks() - 1);
    absl::StrAppend(out, ")");
  });
}

// Returns, for example, "4 ranks: dp_shard 2, tp 2".
std::string world_text(const v1::Attempt& attempt) {
  const std::map<std::string, int> mesh(attempt.mesh().begin(), attempt.mesh().end());
  return absl::StrCat(counted(attempt.ranks(), "rank"), mesh.empty() ? "" : ": ",
                      absl::StrJoin(mesh, ", ", absl::PairFormatter(" ")));
}

bool names_recording(const v1::Attempt& attempt) {
  const auto in = [](const std::string& text) { return text.find(rank_protocol::kRecording) != std::string::npos; };
  return in(attempt.end_message()) || std::any_of(attempt.exits().begin(), attempt.exits().end(),
                                                  [&](const auto& exit) { return in(exit.message()); });
}

// Ignores the count of repetitions, which the controller adds.
std::string kind_of(const std::string& message) {
  return text::shape_of(message.substr(0, message.find(text::kRepetitions)));
}

std::string without_recording(const std::string& text) { return text.substr(0, text.find(rank_protocol::kRecording)); }

// Returns the attempts to show. Only the newest attempt that left recordings names them: it has replaced those of
// earlier attempts.
std::vector<v1::Attempt> shown_attempts(const v1::Job& job) {
  std::vector<v1::Attempt> attempts(job.attempts().begin(), job.attempts().end());
  bool replaced = false;
  for (auto attempt = attempts.rbegin(); attempt != attempts.rend(); ++attempt) {
    const bool names = names_recording(*attempt);
    if (replaced && names) {
      attempt->set_end_message(without_recording(attempt->end_message()));
      for (v1::RankExit& exit : *attempt->mutable_exits()) exit.set_message(without_recording(exit.message()));
    }
    replaced = replaced || names;
  }
  return attempts;
}

void append_attempt(std::string& out, const v1::Attempt& attempt) {
  absl::StrAppend(&out, "  ", attempt.number(), "  ", time_text(attempt.start_time()), "  from step ",
                  attempt.resumed_step(), " to ", attempt.last_step(), "  on ", placement_text(attempt), "\n");
  if (attempt.ranks() > 0) absl::StrAppend(&out, "     ", world_text(attempt), "\n");
  if (!attempt.end_cause().empty()) {
    absl::StrAppend(&out, "     ended ", time_text(attempt.end_time()), ": ", attempt.end_cause(),
                    attempt.end_message().empty() ? "" : ": ", shown_lines(attempt.end_message(), kMore), "\n");
  }
  if (attempt.diagnosed()) {
    absl::StrAppend(&out, "     `titanctl diagnose` with --attempt ", attempt.number(),
                    " shows where each rank stood\n");
  }
  for (const v1::RankExit& exit : attempt.exits()) {
    if (exit.exit_code() == 0 && exit.signal() == 0) continue;
    absl::StrAppend(
        &out, "     rank ", exit.rank(), " on ", exit.node(), ": ",
        exit.signal() != 0 ? absl::StrCat("signal ", exit.signal()) : absl::StrCat("exit code ", exit.exit_code()),
        exit.message().empty() ? "" : ": ", shown_lines(exit.message(), kMore), "\n");
  }
  if (!attempt.phase_seconds().empty()) {
    std::vector<std::string> phases;
    for (const auto& [phase, seconds] : attempt.phase_seconds())
      phases.push_back(absl::StrFormat("%s %.2f s", phase, seconds));
    std::sort(phases.begin(), phases.end());
    absl::StrAppend(&out, "     recovery: ", absl::StrJoin(phases, ", "), "\n");
  }
}

std::string last_step_text(const Pace& pace) {
  if (!pace.since_step) return "";
  std::string out = absl::StrCat(", reported ", span_text(pace.since_step), " ago");
  if (pace.stalled) {
    absl::StrAppend(&out, "; that is long for steps of ",
                    absl::FormatDuration(absl::Trunc(*pace.step, absl::Milliseconds(1))));
  }
  return out;
}

// Returns the seed of the initial weights in the job's configuration.
std::string seed_text(const std::string& config_json) {
  const auto config = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer seed("/debug/seed");
  return config.is_object() && config.contains(seed) && !config.at(seed).is_null() ? config.at(seed).dump() : "";
}

std::string time_limit_text(const v1::Job& job) {
  if (job.spec().time_limit_seconds() == 0) return "";
  return absl::StrCat(duration_text(static_cast<double>(job.spec().time_limit_seconds())),
                      job.has_limit_time() ? ", until " + time_text(job.limit_time()) : " after its first placement");
}

std::string labels_text(const v1::Job& job) {
  const std::map<std::string, std::string> labels(job.labels().begin(), job.labels().end());
  return absl::StrJoin(labels, ", ", absl::PairFormatter("="));
}

}  // namespace

std::string span_text(const std::optional<absl::Duration>& duration, const char* mark) {
  return duration ? mark + duration_text(absl::ToDoubleSeconds(*duration)) : "-";
}

std::string step_text(const v1::Progress& progress) {
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

std::string loss_text(const v1::Progress& progress) {
  return progress.step() == 0 ? "-" : absl::StrFormat("%.4f", progress.loss());
}

std::string slow_text(const v1::SlowRank& slow) {
  return absl::StrFormat("rank %d on %s: its own part of a step takes %.1f ms, that of its peers %.1f ms (score %.2f)",
                         slow.rank(), slow.node(), 1e3 * slow.own_seconds(), 1e3 * slow.peer_seconds(), slow.score());
}

const v1::RankExit* first_failed(const v1::Attempt& attempt) {
  const v1::RankExit* first = nullptr;
  const auto order = [](const v1::RankExit& exit) {
    const auto kind = rank_protocol::exit_kind(exit.exit_code(), exit.signal());
    return std::make_tuple(kind == rank_protocol::ExitKind::kPeerLost, exit.told(), exit.rank());
  };
  for (const v1::RankExit& exit : attempt.exits()) {
    if (exit.kept_log_bytes() > 0 && (first == nullptr || order(exit) < order(*first))) first = &exit;
  }
  return first;
}

void add_problem(std::deque<v1::Event>& newest, const v1::Event& event) {
  if (event.severity() != "warning" && event.severity() != "error") return;
  std::erase_if(newest, [&](const v1::Event& other) {
    return other.reason() == event.reason() && kind_of(other.message()) == kind_of(event.message());
  });
  newest.push_back(event);
  if (newest.size() > kProblemsShown) newest.pop_front();
}

std::string describe_text(const v1::Job& job, const std::vector<v1::Event>& troubles, const LastLines& last) {
  const v1::Progress& progress = job.progress();
  const Pace pace = pace_of(job, absl::Now());
  std::string out;
  const auto row = [&out](std::string_view name, const std::string& value) {
    if (!value.empty()) absl::StrAppendFormat(&out, "%-14s%s\n", name, shown_lines(value, 14));
  };
  row("job", job.name());
  row("uid", job.uid());
  row("title", shown(job.title()));
  row("state", state_name(job.state()));
  if (!job.pending_reason().empty()) row("waits", job.pending_reason() + ": " + job.pending_message());
  if (!job.failure_reason().empty()) row("failed", job.failure_reason() + ": " + job.failure_message());
  row("dump folder", shown(job.spec().dump_folder()));
  row("ranks",
      absl::StrCat(
          job.spec().ranks(), " x ", job.spec().device(),
          job.spec().ranks_per_node() > 0 ? absl::StrCat(", ", job.spec().ranks_per_node(), " per node") : ""));
  row("priority", absl::StrCat(job.spec().priority()));
  row("time limit", time_limit_text(job));
  row("owner", job.owner());
  row("labels", labels_text(job));
  row("seed", seed_text(job.spec().config_json()));
  row("created", time_text(job.create_time()));
  row("started", time_text(job.start_time()));
  row("ended", time_text(job.end_time()));
  if (pace.elapsed) row("elapsed", span_text(pace.elapsed));
  if (pace.left) {
    google::protobuf::Timestamp end;
    end.set_seconds(absl::ToUnixSeconds(absl::Now() + *pace.left));
    row("left", absl::StrCat("about ", span_text(pace.left), ", until ", time_text(end)));
  }
  row("step", step_text(progress) + last_step_text(pace));
  row("", nothing_to_do(job));
  if (progress.step() > 0) {
    row("loss", loss_text(progress));
    row("grad norm", absl::StrFormat("%.4f", progress.grad_norm()));
    row("tokens/s", absl::StrFormat("%.0f", progress.tokens_per_second()));
    if (progress.mfu_percent() > 0) row("mfu", absl::StrFormat("%.2f %%", progress.mfu_percent()));
  }
  row("checkpoint", progress.committed_step() > 0 ? absl::StrCat("step ", progress.committed_step()) : "none yet");
  if (!progress.failed_save().empty()) row("failed save", progress.failed_save());
  for (const v1::SlowRank& slow : job.slow_ranks()) row("slow", slow_text(slow));
  if (job.attempts_size() > 0) absl::StrAppend(&out, "attempts\n");
  for (const v1::Attempt& attempt : shown_attempts(job)) append_attempt(out, attempt);
  if (!troubles.empty()) absl::StrAppend(&out, "warnings\n");
  for (const v1::Event& event : troubles) {
    absl::StrAppend(&out, "  ", time_text(event.time()), "  ", event.reason(), ": ",
                    shown_lines(event.message(), kMore), "\n");
  }
  if (last.text.empty()) return out;
  absl::StrAppend(&out, "last lines of rank ", last.rank, ", which failed first in attempt ", last.attempt, "\n");
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(last.text, "\n"), '\n')) {
    absl::StrAppend(&out, "  ", text::printable({line.data(), line.size()}, "\t"), "\n");
  }
  return out;
}

}  // namespace titan::cli
