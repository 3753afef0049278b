// Sends reports, beats and events of attempts to the controller.

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rank_protocol/failed_ranks.h"
#include "common/rank_protocol/launch.h"
#include "nlohmann/json.hpp"
#include "worker/node/core/step.h"

namespace titan::node {
namespace {

using Kind = Pending::Kind;
using Phase = AttemptRecord::Phase;

constexpr absl::Duration kMinSilenceToReset = absl::Seconds(3);
constexpr char kLoadedKind[] = "\"kind\":\"loaded\"";  // Exactly the text that ranks write.

void identify(const Attempt& attempt, v1::AttemptId* id) {
  id->set_job_uid(attempt.record.key.job_uid);
  id->set_number(attempt.record.key.number);
}

// Returns true when all events that are readable now were sent and, if wanted, the log's end has been read.
bool caught_up(const RankState& rank) {
  return rank.reading == 0 && rank.reading_tail == 0 && (!rank.more || !rank.tail.may_read());
}

v1::RankExitReport to_proto(const rank_protocol::RankExit& exit) {
  v1::RankExitReport report;
  report.set_rank(exit.rank);
  report.set_exit_code(exit.exit_code);
  report.set_signal(exit.signal);
  report.set_last_words(exit.message);
  report.set_time_unix_nanos(exit.time_ns);
  report.set_out_of_memory(exit.out_of_memory);
  report.set_stop_reason(exit.stop_reason);
  report.set_memory_limit_bytes(exit.memory_limit_bytes);
  return report;
}

// Adds the log's end once per session: what was sent is considered received unless the session ends.
void add_exit(RankState& rank, v1::AttemptReport* report) {
  v1::RankExitReport* const exit = report->add_exits();
  *exit = to_proto(*rank.exit);
  if (std::exchange(rank.log_tail_sent, !rank.log_tail.empty()) || rank.log_tail.empty()) return;
  exit->set_log_tail(rank.log_tail);
  exit->set_log_offset(rank.log_offset);
}

v1::WorkerMessage make_report(const Step& step, const Attempt& attempt) {
  v1::WorkerMessage message;
  v1::AttemptReport* const report = message.mutable_attempt();
  identify(attempt, report->mutable_id());
  report->set_phase(phase_of(attempt));
  report->set_store_port(attempt.store_port);
  if (attempt.record.leader) report->set_folder_id(attempt.record.folder_id);
  report->set_leader_epoch(step.state.leader_epoch);
  if (attempt.over()) {
    report->set_holds_devices(attempt.holds_devices());
    report->set_stopped(attempt.stopping);
    report->set_error_reason(attempt.record.error_reason);
    report->set_error_message(attempt.record.error_message);
  } else if (!attempt.overdue_message.empty()) {
    report->set_error_reason("STOP_TIMEOUT");
    report->set_error_message(attempt.overdue_message);
  }
  return message;
}

void write_places(Step& step, Attempt& attempt) {
  attempt.places_changed = false;
  WritePlaces write;
  write.op = attempt.writing_places = step.begin({.kind = Kind::kPlaces, .key = attempt.record.key});
  write.key = attempt.record.key;
  for (const RankState& rank : attempt.ranks) write.places[rank.rank] = rank.tail.acknowledged();
  step.out(std::move(write));
}

void add_damage(std::map<int64_t, std::string>& damage, int64_t offset, const std::string& text) {
  std::string& all = damage[offset];
  absl::StrAppend(&all, all.empty() ? "" : "; ", text);
}

// Collects new problems of a read, each reported once. An error is retried at each beat, because the disk may be
// unreadable only for a moment.
std::map<int64_t, std::string> damage_of(RankState& rank, const SpoolRead& done) {
  std::map<int64_t, std::string> damage;
  const bool is_new = std::exchange(rank.unread, done.error) != done.error;
  if (is_new && !done.error.empty()) add_damage(damage, rank.tail.offset(), done.error);
  if (done.was_cut) {
    add_damage(damage, rank.tail.offset(),
               absl::StrCat("its event file was read up to byte ", rank.tail.offset(),
                            " and is shorter now: read again from its start"));
  }
  return damage;
}

// Records the step from which the ranks resume, for a controller with an older store. The event is one of a rank's
// first.
void note_loaded(Attempt& attempt, const std::string& line) {
  if (attempt.resumed_step || !absl::StrContains(line, kLoadedKind)) return;
  const nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) return;
  const auto kind = event.find("kind"), step = event.find("step");
  if (kind == event.end() || *kind != rank_protocol::event::kLoaded) return;
  if (step != event.end() && step->is_number_integer()) attempt.resumed_step = step->get<int64_t>();
}

std::string missing_text(const SpoolTail::Gap& gap) {
  if (gap.first == gap.last) return absl::StrCat("event ", gap.first, " is missing");
  return absl::StrCat("events ", gap.first, " to ", gap.last, " are missing");
}

}  // namespace

RankState* find_rank(Attempt& attempt, int number) {
  const auto found = std::find_if(attempt.ranks.begin(), attempt.ranks.end(),
                                  [number](const RankState& rank) { return rank.rank == number; });
  return found == attempt.ranks.end() ? nullptr : &*found;
}

v1::AttemptReport::Phase phase_of(const Attempt& attempt) {
  if (attempt.over()) {
    return attempt.record.phase == Phase::kRefused ? v1::AttemptReport::REFUSED : v1::AttemptReport::ENDED;
  }
  if (!attempt.was_live) return v1::AttemptReport::PHASE_UNSPECIFIED;
  return attempt.started ? v1::AttemptReport::STARTED : v1::AttemptReport::PREPARED;
}

// Reports the present state with all exits so far.
void report(Step& step, Attempt& attempt) {
  if (!step.state.connected || !attempt.announced()) return;
  v1::WorkerMessage message = make_report(step, attempt);
  for (RankState& rank : attempt.ranks) {
    rank.exit_unreported = false;
    if (rank.exit) add_exit(rank, message.mutable_attempt());
  }
  attempt.exits_report_by = kNever;
  step.send(std::move(message));
}

void report_after_events(Step& step, Attempt& attempt) {
  attempt.report_by = step.now.monotonic + kSpoolTimeout;
  for (RankState& rank : attempt.ranks) rank.more = true;
  forward_all(step, attempt);
}

void flush_reports(Step& step, Attempt& attempt) {
  // A new session reports everything, see accept() in commands.cc.
  if (!step.state.connected || attempt.stage == Stage::kForgetting) {
    attempt.report_by = attempt.exits_report_by = kNever;
    for (RankState& rank : attempt.ranks) rank.exit_unreported = false;
    return;
  }
  const absl::Duration now = step.now.monotonic;
  if (attempt.report_by != kNever) {
    if (now < attempt.report_by && !std::all_of(attempt.ranks.begin(), attempt.ranks.end(), caught_up)) return;
    attempt.report_by = kNever;
    return report(step, attempt);
  }
  if (attempt.exits_report_by == kNever) return;
  bool more = false;
  for (RankState& rank : attempt.ranks) {
    if (!rank.exit_unreported) continue;
    if (now < attempt.exits_report_by && !caught_up(rank)) {
      more = true;
      continue;
    }
    rank.exit_unreported = false;
    if (!attempt.announced()) continue;
    v1::WorkerMessage message = make_report(step, attempt);
    add_exit(rank, message.mutable_attempt());
    step.send(std::move(message));
  }
  if (!more) attempt.exits_report_by = kNever;
}

void forward_events(Step& step, Attempt& attempt, RankState& rank) {
  if (!step.state.connected || attempt.stage == Stage::kForgetting || attempt.stage <= Stage::kPreparing) return;
  if (rank.reading != 0 || !rank.more || !rank.tail.may_read()) return;
  rank.more = false;
  rank.reading =
      step.begin({.kind = Kind::kSpool, .key = attempt.record.key, .rank = rank.rank, .offset = rank.tail.offset()});
  step.out(ReadSpool{rank.reading, attempt.record.key, rank.rank, rank.tail.offset(), SpoolTail::kBatchBytes});
}

void forward_all(Step& step, Attempt& attempt) {
  for (RankState& rank : attempt.ranks) forward_events(step, attempt, rank);
}

void on_spool_read(Step& step, const Pending& what, const SpoolRead& done) {
  Attempt* const attempt = step.find(what.key);
  RankState* const rank = attempt == nullptr ? nullptr : find_rank(*attempt, what.rank);
  if (rank == nullptr || rank->reading != done.op) return;
  rank->reading = 0;
  if (!step.state.connected || what.offset != rank->tail.offset()) {  // Read for an earlier session.
    rank->more = true;
    return forward_events(step, *attempt, *rank);
  }
  std::vector<SpoolEvent> lines = done.lines;
  const int64_t before = rank->tail.offset();
  std::map<int64_t, std::string> damage = damage_of(*rank, done);
  if (done.error.empty()) {
    const int64_t start = done.was_cut ? 0 : before;
    const auto gaps = rank->tail.take(lines, start, done.next_offset, rank->exit.has_value());
    for (const SpoolDamage& part : done.damage) {  // Damage after the tail's position is read again later.
      if (part.offset < rank->tail.offset()) add_damage(damage, part.offset, part.message);
    }
    for (const SpoolTail::Gap& gap : gaps) add_damage(damage, gap.offset, missing_text(gap));
  }
  for (const auto& [offset, text] : damage) {
    note(step, what.key, journal::Level::kError, done.error.empty() ? "SpoolDamaged" : "SpoolUnread",
         absl::StrCat("rank ", rank->rank, ": ", text));
  }
  if ((!lines.empty() || !damage.empty()) && attempt->stage != Stage::kForgetting) {
    v1::WorkerMessage message;
    v1::RankEvents* const events = message.mutable_events();
    identify(*attempt, events->mutable_id());
    events->set_rank(rank->rank);
    for (const auto& [offset, text] : damage) {
      v1::SpoolDamage* const entry = events->add_damage();
      entry->set_offset(offset);
      entry->set_message(text);
    }
    for (SpoolEvent& line : lines) {
      note_loaded(*attempt, line.json);
      v1::RankEvent* const event = events->add_events();
      event->set_sequence(line.sequence);
      event->set_json(std::move(line.json));
    }
    step.state.events += static_cast<int64_t>(lines.size());
    step.send(std::move(message));
  }
  if (rank->tail.offset() != before) rank->more = true;
  forward_events(step, *attempt, *rank);
}

void read_log_tails(Step& step, Attempt& attempt) {
  if (attempt.stage == Stage::kForgetting) return;
  for (RankState& rank : attempt.ranks) {
    if (!rank.exit || rank.tail_wanted) continue;
    const rank_protocol::RankExit& exit = *rank.exit;
    if (!rank.named && !rank_protocol::has_failed(exit.exit_code, exit.signal, exit.stop_reason)) continue;
    rank_protocol::FailedLogs wanted;
    for (const RankState& other : attempt.ranks) {
      if (other.tail_wanted) wanted.add(other.exit->exit_code, other.exit->signal, other.exit->message);
    }
    const bool taken = rank.named ? wanted.take_named(exit.exit_code, exit.signal, exit.message)
                                  : wanted.take(exit.exit_code, exit.signal, exit.message);
    if (!taken) continue;
    rank.tail_wanted = true;
    rank.reading_tail = step.begin({.kind = Kind::kLogTail, .key = attempt.record.key, .rank = rank.rank});
    step.out(ReadLogTail{rank.reading_tail, attempt.record.key, rank.rank});
  }
}

void on_log_tail_read(Step& step, const Pending& what, const LogTailRead& done) {
  Attempt* const attempt = step.find(what.key);
  RankState* const rank = attempt == nullptr ? nullptr : find_rank(*attempt, what.rank);
  if (rank == nullptr || rank->reading_tail != done.op) return;
  rank->reading_tail = 0;
  rank->log_tail = done.text;
  rank->log_offset = done.offset;
  if (done.text.empty() || rank->exit_unreported || attempt->report_by != kNever) return;
  rank->exit_unreported = true;  // Its exit was reported without the log's end.
  attempt->exits_report_by = step.now.monotonic + kSpoolTimeout;
}

void acknowledge(Step& step, Attempt& attempt, int number, int64_t sequence) {
  RankState* const rank = find_rank(attempt, number);
  if (rank == nullptr || attempt.stage == Stage::kForgetting || !rank->tail.acknowledge(sequence)) return;
  attempt.places_changed = true;
  if (attempt.writing_places == 0) write_places(step, attempt);
  forward_events(step, attempt, *rank);  // The window may have been full.
}

// After a failed write the old position only causes repeated events, which the sequence numbers reveal.
void on_places_written(Step& step, Attempt& attempt, const std::string& error) {
  attempt.writing_places = 0;
  if (!error.empty()) note(step, attempt.record.key, journal::Level::kError, "WriteFailed", error);
  if (attempt.places_changed && attempt.stage != Stage::kForgetting) write_places(step, attempt);
}

void rewind(Attempt& attempt) {
  for (RankState& rank : attempt.ranks) {
    rank.log_tail_sent = false;
    rank.unread.clear();  // Another controller may not have received it.
  }
  for (RankState& rank : attempt.ranks) {
    rank.tail.rewind();
    rank.more = true;
  }
}

v1::RankStatus status_of(const RankState& rank, Now now) {
  v1::RankStatus status;
  if (rank.beacon) {
    status = *rank.beacon;
    status.set_phase_milliseconds(std::max<int64_t>(0, absl::ToInt64Milliseconds(now.monotonic - rank.phase_since)));
  }
  status.set_rank(rank.rank);
  status.set_pid(rank.pid);
  status.set_start_ticks(rank.start_ticks);
  return status;
}

void fill(const Attempt& attempt, Now now, google::protobuf::RepeatedPtrField<v1::RankStatus>* ranks) {
  for (const RankState& rank : attempt.ranks) *ranks->Add() = status_of(rank, now);
}

// `is_late`: this process was stopped or starved, and answers may still wait to be read, so the beat does not report
// its silence.
void send_beat(Step& step, bool is_late) {
  NodeState& state = step.state;
  const absl::Duration silence = step.now.monotonic - state.heard_at;
  if (state.connected && silence > std::max(state.lease, kMinSilenceToReset)) {
    step.reset(absl::StrCat("no answer to beats for ", absl::ToInt64Milliseconds(silence), " ms"));
  }
  v1::WorkerMessage message;
  v1::Beat* const beat = message.mutable_beat();
  beat->set_lease_epoch(state.lease_epoch);
  beat->set_sequence(++state.beat);
  if (!is_late) beat->set_unanswered_milliseconds(absl::ToInt64Milliseconds(silence));
  beat->set_unusable(state.unusable);
  beat->set_unix_nanoseconds(step.now.wall_ns());
  for (auto& [key, attempt] : state.attempts) {
    if (attempt.shim == ShimState::kLinked) {
      step.out(
          SendToShim{key,
                     attempt.link,
                     {.kind = ShimCommand::Kind::kLease, .silence_milliseconds = absl::ToInt64Milliseconds(silence)}});
    }
    for (RankState& rank : attempt.ranks) rank.more = true;
    forward_all(step, attempt);
    if (attempt.ending() || !attempt.announced()) continue;
    v1::AttemptBeat* const item = beat->add_attempts();
    item->mutable_id()->set_job_uid(key.job_uid);
    item->mutable_id()->set_number(key.number);
    fill(attempt, step.now, item->mutable_ranks());
  }
  if (!state.connected) return;
  step.send(std::move(message));
  ++state.beats;
}

// Notifies the former leader that another controller leads.
void report_stale_leader(Step& step, const v1::ControllerMessage& message) {
  const bool reads = message.has_events_ack() || message.has_read_log() || message.has_read_trace();
  const v1::AttemptId* const id = id_of(message);
  if (id == nullptr || reads) return;
  const AttemptKey key = {id->job_uid(), id->number()};
  const Attempt* const attempt = step.find(key);
  const auto phase =
      attempt == nullptr || !attempt->announced() ? v1::AttemptReport::PHASE_UNSPECIFIED : phase_of(*attempt);
  answer_unknown(step, key, attempt == nullptr && message.has_prepare() ? v1::AttemptReport::REFUSED : phase,
                 {"STALE_LEADER", absl::StrCat("a command of leader epoch ", message.leader_epoch(),
                                               "; this node has seen epoch ", step.state.leader_epoch)});
}

}  // namespace titan::node
