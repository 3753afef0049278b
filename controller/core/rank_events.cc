// Lines of the ranks' spools: each is taken exactly once, in order, and acknowledged when that is durable.

#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/testing/planted.h"
#include "common/base/text/gibibytes.h"
#include "common/rank_protocol/launch.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

namespace event = rank_protocol::event;

// Ranks of another version may leave members out or change their types; that must cost one figure, never the line.
double number(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return it->get<double>();
}

// 0 for what no counter of a training comes to, and what could not be added to.
int64_t integer(const nlohmann::json& json, const char* key) {
  constexpr double kMost = 1e15;
  const double value = number(json, key);
  return value > -kMost && value < kMost ? static_cast<int64_t>(value) : 0;
}

std::string text(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || !it->is_string() ? "" : it->get<std::string>();
}

bool flag(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_boolean() && it->get<bool>();
}

// A node that reconnects says it again. What was lost may be the commit that somebody waits for: whether that
// checkpoint is there is not known, and nothing waits for its word any more.
void take_damage(Step& step, LiveJob& job, int attempt, int rank, const std::string& node,
                 const v1::SpoolDamage& damage, Change& change, bool& job_changed) {
  const Spools::Damage noted = step.state.spools.note_damage({job.record.uid, attempt, rank}, damage.offset());
  if (noted == Spools::Damage::kNotToBeTold) return;
  const bool is_last = noted == Spools::Damage::kLastToBeTold;
  add_event(
      step, change, job,
      {.node = node,
       .attempt = attempt,
       .rank = rank,
       .reason = "SpoolDamaged",
       .message = absl::StrCat(damage.message(), is_last ? "; no more damage of this rank's events is reported" : ""),
       .severity = "warning"});
  job_changed = true;
  const bool current = job.attempt && job.attempt->record.number == attempt;
  if (rank != 0 || !current || !apply(job, job::JobEvent::kCheckpointDone)) return;
  end_explanation(job);
  job.progress.failed_save = "its outcome is not known: events of rank 0 were lost";
  put_progress(change, job);
}

// Lines give what saves took of the training's time for each step since the line before; a validation's say nothing of
// it.
void note_stall(Step& step, LiveAttempt& attempt, int64_t train_step, const nlohmann::json& metrics) {
  const double each = number(metrics, "time_metrics/checkpoint(s)");
  if (each != each) return;
  const std::optional<int64_t> before = std::exchange(attempt.logged_step, train_step);
  if (before && train_step > *before && each > 0)
    step.measure(Measure::kCheckpointStall, each * static_cast<double>(train_step - *before));
}

void take_step(Step& step, LiveJob& job, int attempt, const nlohmann::json& json, Change& change) {
  const int64_t train_step = integer(json, "step");
  const nlohmann::json metrics = json.value("metrics", nlohmann::json::object());
  const auto take_figure = [&](const char* key, double& figure) {  // A line of a validation has other figures.
    if (metrics.contains(key)) figure = number(metrics, key);
  };
  take_figure("loss_metrics/global_avg_loss", job.progress.loss);
  take_figure("grad_norm", job.progress.grad_norm);
  take_figure("throughput(tps)", job.progress.tokens_per_second);
  take_figure("mfu(%)", job.progress.mfu_percent);
  take_figure("moe/max_over_mean", job.progress.expert_max_over_mean);
  job.progress.update_time_ns = step.now.wall_ns();
  const bool current = job.attempt && job.attempt->record.number == attempt;
  if (current) note_stall(step, *job.attempt, train_step, metrics);
  if (current) note_first_step(step, job, change);
  take_finished_step(step, job, attempt, train_step, change);
  put_progress(change, job);
  show(change, job);
}

// What a late event says of an attempt that has ended; `apply` says whether it has changed anything.
void change_ended(LiveJob& job, int attempt, Change& change, const std::function<bool(job::AttemptRecord&)>& apply) {
  for (std::shared_ptr<const job::AttemptRecord>& past : job.past) {
    if (past->number != attempt) continue;
    job::AttemptRecord record = *past;
    if (!apply(record)) return;
    put_attempt(change, job, record);
    past = std::make_shared<const job::AttemptRecord>(std::move(record));
    show(change, job);
  }
}

void take_rank_event(Step& step, LiveJob& job, int attempt, int rank, const std::string& node,
                     const nlohmann::json& json, Change& change, bool& job_changed) {
  const std::string kind = text(json, "kind");
  const int64_t train_step = integer(json, "step");
  const bool current = job.attempt && job.attempt->record.number == attempt;
  const auto tell = [&](const char* reason, std::string message, absl::string_view severity) {
    if (severity != "info" && !step.state.spools.is_to_be_told({job.record.uid, attempt}, reason, message)) return;
    add_event(step, change, job,
              {.node = node,
               .attempt = attempt,
               .rank = rank,
               .reason = reason,
               .message = std::move(message),
               .severity = std::string(severity)});
    job_changed = true;
  };
  if (kind == event::kStep) {
    take_step(step, job, attempt, json, change);
  } else if (kind == event::kLoaded) {
    if (rank != 0) return;
    const std::string source = text(json, "source");
    tell("AttemptLoaded",
         source == "checkpoint" ? absl::StrCat("checkpoint of step ", train_step)
                                : absl::StrCat("initial weights (", source, ")"),
         "info");
    if (!current) {
      return change_ended(job, attempt, change, [train_step](job::AttemptRecord& record) {
        return std::exchange(record.resumed_step, train_step) != train_step;
      });
    }
    if (job.attempt->loaded) return;
    job.attempt->loaded = true;
    job.attempt->record.resumed_step = train_step;
    job.attempt->logged_step = train_step;
    note_phase(step, job, "load", job.attempt->started_at);
    job.attempt->loaded_at = step.now.monotonic;
    put_attempt(change, job, job.attempt->record);
  } else if (kind == event::kStaged) {
    if (rank == 0) tell("CheckpointStaged", absl::StrCat("step ", train_step), "info");
  } else if (kind == event::kCommitted) {
    if (rank != 0) return;
    const bool full = flag(json, "full");
    const double seconds = number(json, "seconds");
    tell("CheckpointCommitted", absl::StrCat("step ", train_step, full ? "" : " (export, not a resume point)"), "info");
    if (seconds == seconds) step.measure(Measure::kCheckpoint, seconds);
    if (seconds > 0) job.save_seconds = seconds;
    // The newest in time: after a fall-back to an older step the numbers begin lower again.
    if (full) {
      job.progress.committed_step = current ? train_step : std::max(job.progress.committed_step, train_step);
      job.progress.commit_time_ns = step.now.wall_ns();
    }
    job.progress.failed_save.clear();
    take_finished_step(step, job, attempt, train_step, change);
    put_progress(change, job);
    if (!current) return;
    take_progress(step, job, train_step, full ? train_step : 0, change);
    if (apply(job, job::JobEvent::kCheckpointDone)) end_explanation(job);
  } else if (kind == event::kCheckpointFailed) {
    job.progress.failed_save = absl::StrCat("step ", train_step, ": ", text(json, "reason"));
    tell("CheckpointFailed", job.progress.failed_save, "warning");
    step.measure(Measure::kCheckpointFailed, 1);
    put_progress(change, job);
    show(change, job);
    // It is over; earlier checkpoints stay, training goes on.
    if (current && apply(job, job::JobEvent::kCheckpointDone)) {
      end_explanation(job);
      job_changed = true;  // Also where the warning is one of many and makes no event.
    }
  } else if (kind == event::kRejected) {
    tell("CheckpointRejected", absl::StrCat("step ", train_step, ": ", text(json, "reason")), "warning");
  } else if (kind == event::kTrace) {
    tell("TraceRecorded",
         absl::StrCat("steps ", integer(json, "first_step"), " to ", integer(json, "last_step"), ", ",
                      mebibytes(integer(json, "bytes"))),
         "info");
  } else if (kind == event::kWarning) {
    tell("RankWarning", text(json, "message"), "warning");
  } else if (kind == event::kError) {
    tell("RankError", absl::StrCat(text(json, "reason"), ": ", text(json, "message")), "error");
    if (!current) return;
    const bool same_job = !json.contains("same_job") || flag(json, "same_job");
    const auto holder = static_cast<int>(integer(json, "holder_attempt"));
    add_error(job,
              {rank, text(json, "class"), text(json, "reason"), text(json, "message"), text(json, "holder_job"), holder,
               same_job},
              change);
  } else if (kind == event::kFinished || kind == event::kStopped) {
    if (rank != 0) return;
    if (kind == event::kStopped) tell("AttemptStopped", absl::StrCat("saved and left at step ", train_step), "info");
    take_finished_step(step, job, attempt, train_step, change);
    put_progress(change, job);
  }
}

}  // namespace

void on_rank_events(Step& step, Node& node, const v1::RankEvents& events) {
  const std::string& uid = events.id().job_uid();
  const int attempt = events.id().number(), rank = events.rank();
  if (events.events().empty() && events.damage().empty()) return;
  if (!knows(step.state, uid)) return;  // They stay on the node, unacknowledged, for the controller that knows the job.
  if (!may_tell(step.state, node, {uid, attempt}, rank)) {
    return note_foreign(step, node,
                        absl::StrCat("events of rank ", rank, " of attempt ", attempt, " of job uid ", uid,
                                     ", which is not placed there"));
  }
  LiveJob* live = step.state.jobs.find(uid);
  Change change;
  if (live != nullptr) {
    LiveJob& job = *live;
    int64_t& cursor = step.state.spools.cursor({uid, attempt, rank});
    bool job_changed = false;
    for (const v1::SpoolDamage& damage : events.damage()) {
      take_damage(step, job, attempt, rank, node.record.name, damage, change, job_changed);
    }
    for (const v1::RankEvent& line : events.events()) {
      if (line.sequence() <= cursor) continue;  // Sent again after a reconnect.
      cursor = line.sequence();
      const nlohmann::json parsed = nlohmann::json::parse(line.json(), nullptr, /*allow_exceptions=*/false);
      if (parsed.is_object()) take_rank_event(step, job, attempt, rank, node.record.name, parsed, change, job_changed);
    }
    if (!events.events().empty()) {
      change.mutations.push_back(store::put(cursor_key(uid, attempt, rank), absl::StrCat(cursor)));
    }
    if (job_changed) put_job(change, job);
  }
  if (events.events().empty()) return step.commit(std::move(change));
  // Of a job that is over there is nothing left to learn; its lines are acknowledged all the same.
  Send& ack = change.then.sends.emplace_back();
  ack.session = node.session;
  *ack.message.mutable_events_ack()->mutable_id() = events.id();
  ack.message.mutable_events_ack()->set_rank(rank);
  ack.message.mutable_events_ack()->set_sequence(events.events().rbegin()->sequence());
  if (testing::planted(testing::Bug::kAckedBeforeDurable)) step.effects.now.sends.push_back(ack);
  step.commit(std::move(change));
}

// What a job shows is the last step that its present attempt has finished, whether or not it logged that one; between
// attempts, the last one's.
void take_finished_step(Step& step, LiveJob& job, int attempt, int64_t train_step, Change& change) {
  if (!job.attempt ||
      job.attempt->record.number != attempt) {  // A late word of one that has ended: progress all the same.
    change_ended(job, attempt, change, [train_step](job::AttemptRecord& record) {
      if (train_step <= record.last_step) return false;
      record.last_step = train_step;
      return true;
    });
    if (!job.attempt) job.progress.step = std::max(job.progress.step, train_step);
    if (job::note_progress(job.record.history, train_step, 0)) put_job(change, job);
    return;
  }
  take_progress(step, job, train_step, 0, change);
  if (job.progress.step == job.attempt->record.last_step) return;
  job.progress.step = job.attempt->record.last_step;
  show(change, job);
}

}  // namespace titan::core
