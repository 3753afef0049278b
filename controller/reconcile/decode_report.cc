#include "controller/reconcile/decode_report.h"

#include <algorithm>
#include <utility>

#include "common/rank_protocol/spool.h"
#include "controller/reconcile/decode_rank_event.h"

namespace titan::reconcile {
namespace {

// Limits for one rank's diagnosis, whatever its node sends.
constexpr int kMaxGroups = 1024;
constexpr int kMaxCalls = 4096;

core::AttemptKey attempt_of(const v1::AttemptId& id) { return {id.job_uid(), id.number()}; }

core::PartPhase phase_of(v1::AttemptReport::Phase phase) {
  switch (phase) {
    case v1::AttemptReport::PREPARING:
      return core::PartPhase::kPreparing;
    case v1::AttemptReport::PREPARED:
      return core::PartPhase::kPrepared;
    case v1::AttemptReport::STARTED:
      return core::PartPhase::kStarted;
    case v1::AttemptReport::ENDED:
      return core::PartPhase::kEnded;
    case v1::AttemptReport::REFUSED:
      return core::PartPhase::kRefused;
    default:  // A newer version may have more phases.
      return core::PartPhase::kUnknown;
  }
}

// --- registrations and beats ---

std::vector<core::RankStatus> ranks_of(const google::protobuf::RepeatedPtrField<v1::RankStatus>& from) {
  std::vector<core::RankStatus> ranks;
  ranks.reserve(static_cast<size_t>(from.size()));
  for (const v1::RankStatus& rank : from) {
    ranks.push_back({rank.rank(), rank.step(), rank.phase(), rank.counter(), rank.own_steps(), rank.own_nanoseconds()});
  }
  return ranks;
}

core::AttemptInventory inventory_of(const v1::AttemptInventory& from) {
  core::AttemptInventory item;
  item.attempt = attempt_of(from.id());
  item.phase = phase_of(from.phase());
  item.ranks = ranks_of(from.ranks());
  item.job = from.job();
  for (const v1::NodeRow& row : from.nodes()) item.nodes.push_back({row.names(), row.ranks(), ""});
  item.start_time_ns = from.start_unix_nanos();
  item.devices = from.devices();
  item.threads_per_rank = from.threads_per_rank();
  item.device_indices.assign(from.device_indices().begin(), from.device_indices().end());
  item.resumed_step = from.resumed_step();
  item.previous_end_cause = from.previous_end_cause();
  item.previous_end_message = from.previous_end_message();
  return item;
}

core::Beat beat_of(const v1::Beat& from) {
  core::Beat beat;
  beat.sequence = from.sequence();
  beat.attempts.reserve(static_cast<size_t>(from.attempts_size()));
  for (const v1::AttemptBeat& item : from.attempts()) {
    beat.attempts.push_back({attempt_of(item.id()), ranks_of(item.ranks())});
  }
  beat.unanswered = absl::Milliseconds(from.unanswered_milliseconds());
  beat.unusable = from.unusable();
  beat.unix_nanoseconds = from.unix_nanoseconds();
  return beat;
}

// --- attempts and their ranks' events ---

core::ReportedExit exit_of(const v1::RankExitReport& from) {
  core::ReportedExit said;
  said.exit.rank = from.rank();
  said.exit.exit_code = from.exit_code();
  said.exit.signal = from.signal();
  said.exit.out_of_memory = from.out_of_memory();
  said.exit.time_ns = from.time_unix_nanos();
  said.exit.message = from.last_words();
  said.exit.stop_reason = from.stop_reason();
  said.exit.memory_limit_bytes = from.memory_limit_bytes();
  said.log = {from.log_offset(), from.log_tail()};
  return said;
}

core::AttemptReport report_of(const v1::AttemptReport& from) {
  core::AttemptReport report;
  report.attempt = attempt_of(from.id());
  report.phase = phase_of(from.phase());
  report.store_port = from.store_port();
  report.error_reason = from.error_reason();
  report.error_message = from.error_message();
  report.exits.reserve(static_cast<size_t>(from.exits_size()));
  for (const v1::RankExitReport& exit : from.exits()) report.exits.push_back(exit_of(exit));
  report.folder_id = from.folder_id();
  report.highest_attempt = from.highest_attempt();
  report.holds_devices = from.holds_devices();
  report.stopped = from.stopped();
  return report;
}

core::RankEvents events_of(const v1::RankEvents& from) {
  core::RankEvents events;
  events.attempt = attempt_of(from.id());
  events.rank = from.rank();
  events.lines.reserve(static_cast<size_t>(from.events_size()));
  for (const v1::RankEvent& line : from.events()) {
    events.lines.push_back({line.sequence(), decode_rank_event(line.json())});
  }
  for (const v1::SpoolDamage& damage : from.damage()) events.damage.push_back({damage.offset(), damage.message()});
  return events;
}

// --- diagnoses ---

rank_protocol::CallState state_of(const v1::FlightCall& call) {
  using rank_protocol::CallState;
  if (call.completed()) return CallState::kCompleted;
  if (call.posted()) return CallState::kPosted;
  return call.inside() ? CallState::kInside : CallState::kQueued;
}

rank_protocol::RankFlight flight_of(const v1::RankDiagnosis& from) {
  rank_protocol::RankFlight flight;
  flight.rank = from.status().rank();
  const int groups = std::min(from.groups_size(), kMaxGroups);
  for (int i = 0; i < groups; ++i) {
    const v1::FlightGroup& group = from.groups(i);
    flight.groups.push_back({group.name(), group.members(), group.key(), group.issued()});
  }
  for (int i = std::max(0, from.calls_size() - kMaxCalls); i < from.calls_size(); ++i) {
    const v1::FlightCall& call = from.calls(i);
    if (call.group() < 0 || call.group() >= groups) continue;  // Indices from a node are not trusted.
    flight.calls.push_back({call.group(), call.sequence(), call.operation(), call.type(), call.elements(), call.mark(),
                            call.since_mark(), call.created_nanoseconds(), state_of(call)});
  }
  return flight;
}

job::RankFinding finding_of(const v1::RankDiagnosis& from) {
  job::RankFinding finding;
  finding.alive = from.alive();
  finding.phase = from.status().phase();
  finding.step = from.status().step();
  finding.phase_milliseconds = from.status().phase_milliseconds();
  finding.flight = flight_of(from);
  finding.flight_missing = from.flight_missing();
  finding.stacks = from.stacks().substr(0, rank_protocol::kStacksBytes);
  finding.stacks_missing = from.stacks_missing();
  return finding;
}

core::Diagnosis diagnosis_of(const v1::Diagnosis& from) {
  core::Diagnosis diagnosis;
  diagnosis.attempt = attempt_of(from.id());
  if (from.has_rank()) diagnosis.found = finding_of(from.rank());
  diagnosis.end = from.end();
  return diagnosis;
}

}  // namespace

core::Registration decode(const v1::Register& hello) {
  core::Registration said;
  said.node = hello.node();
  said.instance = hello.instance();
  said.address = hello.address();
  said.version = hello.version();
  said.cluster = hello.cluster();
  said.device = hello.resources().device();
  said.devices = hello.resources().devices();
  said.cpu_cores = hello.resources().cpu_cores();
  said.memory_bytes = hello.resources().memory_bytes();
  said.device_model = hello.resources().device_model();
  said.device_memory_bytes = hello.resources().device_memory_bytes();
  said.labels = {hello.labels().begin(), hello.labels().end()};
  said.boot_id = hello.boot_id();
  said.boot_nanoseconds = hello.boot_nanoseconds();
  said.diagnoses = hello.diagnoses();
  said.unusable = hello.unusable();
  said.unix_nanoseconds = hello.unix_nanoseconds();
  said.inventory.reserve(static_cast<size_t>(hello.inventory_size()));
  for (const v1::AttemptInventory& item : hello.inventory()) said.inventory.push_back(inventory_of(item));
  return said;
}

core::NodeReport decode(const v1::WorkerMessage& message) {
  switch (message.kind_case()) {
    case v1::WorkerMessage::kBeat:
      return beat_of(message.beat());
    case v1::WorkerMessage::kAttempt:
      return report_of(message.attempt());
    case v1::WorkerMessage::kEvents:
      return events_of(message.events());
    case v1::WorkerMessage::kDiagnosis:
      return diagnosis_of(message.diagnosis());
    // The API delivers answers to the readers that wait for them. This one was not requested from this node.
    case v1::WorkerMessage::kLog:
    case v1::WorkerMessage::kTrace:
      return core::MisdirectedAnswer{};
    case v1::WorkerMessage::kRegister:
    case v1::WorkerMessage::KIND_NOT_SET:
      return core::OtherReport{};
  }
  return core::OtherReport{};
}

}  // namespace titan::reconcile
