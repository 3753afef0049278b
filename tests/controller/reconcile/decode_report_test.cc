#include "controller/reconcile/decode_report.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/controller/reconcile/random_message.h"

namespace titan::reconcile {
namespace {

// --- Inverse functions, which reveal fields that are lost or mixed up ---

void put(v1::AttemptId& id, const core::AttemptKey& attempt) {
  id.set_job_uid(attempt.first);
  id.set_number(attempt.second);
}

v1::AttemptReport::Phase back(core::PartPhase phase) {
  switch (phase) {
    case core::PartPhase::kUnknown:
      return v1::AttemptReport::PHASE_UNSPECIFIED;
    case core::PartPhase::kPreparing:
      return v1::AttemptReport::PREPARING;
    case core::PartPhase::kPrepared:
      return v1::AttemptReport::PREPARED;
    case core::PartPhase::kStarted:
      return v1::AttemptReport::STARTED;
    case core::PartPhase::kEnded:
      return v1::AttemptReport::ENDED;
    case core::PartPhase::kRefused:
      return v1::AttemptReport::REFUSED;
  }
  return v1::AttemptReport::PHASE_UNSPECIFIED;
}

template <typename Message>
void put_ranks(Message& message, const std::vector<core::RankStatus>& ranks) {
  for (const core::RankStatus& from : ranks) {
    v1::RankStatus& rank = *message.add_ranks();
    rank.set_rank(from.rank);
    rank.set_step(from.step);
    rank.set_phase(from.phase);
    rank.set_counter(from.counter);
    rank.set_own_steps(from.own_steps);
    rank.set_own_nanoseconds(from.own_nanoseconds);
  }
}

v1::Register back(const core::Registration& from) {
  v1::Register hello;
  hello.set_node(from.node);
  hello.set_instance(from.instance);
  hello.set_address(from.address);
  hello.set_version(from.version);
  hello.set_cluster(from.cluster);
  hello.mutable_resources()->set_device(from.device);
  hello.mutable_resources()->set_devices(from.devices);
  hello.mutable_resources()->set_cpu_cores(from.cpu_cores);
  hello.mutable_resources()->set_memory_bytes(from.memory_bytes);
  hello.mutable_resources()->set_device_model(from.device_model);
  hello.mutable_resources()->set_device_memory_bytes(from.device_memory_bytes);
  hello.mutable_labels()->insert(from.labels.begin(), from.labels.end());
  hello.set_boot_id(from.boot_id);
  hello.set_boot_nanoseconds(from.boot_nanoseconds);
  hello.set_diagnoses(from.diagnoses);
  hello.set_unusable(from.unusable);
  hello.set_unix_nanoseconds(from.unix_nanoseconds);
  for (const core::AttemptInventory& one : from.inventory) {
    v1::AttemptInventory& item = *hello.add_inventory();
    put(*item.mutable_id(), one.attempt);
    item.set_phase(back(one.phase));
    put_ranks(item, one.ranks);
    item.set_job(one.job);
    for (const rank_protocol::NodeRow& row : one.nodes) {
      item.add_nodes()->set_names(row.names);
      item.mutable_nodes()->rbegin()->set_ranks(row.ranks);
    }
    item.set_start_unix_nanos(one.start_time_ns);
    item.set_devices(one.devices);
    item.set_threads_per_rank(one.threads_per_rank);
    item.mutable_device_indices()->Assign(one.device_indices.begin(), one.device_indices.end());
    item.set_resumed_step(one.resumed_step);
    item.set_previous_end_cause(one.previous_end_cause);
    item.set_previous_end_message(one.previous_end_message);
  }
  return hello;
}

v1::Beat back(const core::Beat& from) {
  v1::Beat beat;
  beat.set_sequence(from.sequence);
  beat.set_unanswered_milliseconds(absl::ToInt64Milliseconds(from.unanswered));
  beat.set_unusable(from.unusable);
  beat.set_unix_nanoseconds(from.unix_nanoseconds);
  for (const core::AttemptBeat& item : from.attempts) {
    put(*beat.add_attempts()->mutable_id(), item.attempt);
    put_ranks(*beat.mutable_attempts()->rbegin(), item.ranks);
  }
  return beat;
}

v1::AttemptReport back(const core::AttemptReport& from) {
  v1::AttemptReport report;
  put(*report.mutable_id(), from.attempt);
  report.set_phase(back(from.phase));
  report.set_store_port(from.store_port);
  report.set_error_reason(from.error_reason);
  report.set_error_message(from.error_message);
  report.set_folder_id(from.folder_id);
  report.set_highest_attempt(from.highest_attempt);
  report.set_holds_devices(from.holds_devices);
  report.set_stopped(from.stopped);
  for (const core::ReportedExit& reported : from.exits) {
    v1::RankExitReport& exit = *report.add_exits();
    exit.set_rank(reported.exit.rank);
    exit.set_exit_code(reported.exit.exit_code);
    exit.set_signal(reported.exit.signal);
    exit.set_last_words(reported.exit.message);
    exit.set_time_unix_nanos(reported.exit.time_ns);
    exit.set_out_of_memory(reported.exit.out_of_memory);
    exit.set_stop_reason(reported.exit.stop_reason);
    exit.set_memory_limit_bytes(reported.exit.memory_limit_bytes);
    exit.set_log_tail(reported.log.text);
    exit.set_log_offset(reported.log.offset);
  }
  return report;
}

v1::RankEvents back(const core::RankEvents& from) {
  v1::RankEvents events;
  put(*events.mutable_id(), from.attempt);
  events.set_rank(from.rank);
  for (const core::RankLine& line : from.lines) {
    v1::RankEvent& event = *events.add_events();
    event.set_sequence(line.sequence);
    const auto* warning = line.event ? std::get_if<core::RankWarning>(&*line.event) : nullptr;
    event.set_json(warning == nullptr ? "" : absl::StrCat(R"({"kind":"warning","message":")", warning->message, "\"}"));
  }
  for (const core::ReportedSpoolDamage& one : from.damage) {
    events.add_damage()->set_offset(one.offset);
    events.mutable_damage()->rbegin()->set_message(one.message);
  }
  return events;
}

v1::Diagnosis back(const core::Diagnosis& from) {
  v1::Diagnosis diagnosis;
  put(*diagnosis.mutable_id(), from.attempt);
  diagnosis.set_end(from.end);
  if (!from.found) return diagnosis;
  const job::RankFinding& found = *from.found;
  v1::RankDiagnosis& rank = *diagnosis.mutable_rank();
  rank.mutable_status()->set_rank(found.flight.rank);
  rank.mutable_status()->set_step(found.step);
  rank.mutable_status()->set_phase(found.phase);
  rank.mutable_status()->set_phase_milliseconds(found.phase_milliseconds);
  rank.set_alive(found.alive);
  rank.set_flight_missing(found.flight_missing);
  rank.set_stacks(found.stacks);
  rank.set_stacks_missing(found.stacks_missing);
  for (const rank_protocol::FlightGroup& one : found.flight.groups) {
    v1::FlightGroup& group = *rank.add_groups();
    group.set_name(one.name);
    group.set_members(one.members);
    group.set_key(one.key);
    group.set_issued(one.issued);
  }
  for (const rank_protocol::FlightCall& one : found.flight.calls) {
    v1::FlightCall& call = *rank.add_calls();
    call.set_group(one.group);
    call.set_sequence(one.sequence);
    call.set_operation(one.operation);
    call.set_type(one.type);
    call.set_elements(one.elements);
    call.set_mark(one.mark);
    call.set_since_mark(one.since_mark);
    call.set_created_nanoseconds(one.created_ns);
    call.set_completed(one.state == rank_protocol::CallState::kCompleted);
    call.set_posted(one.state == rank_protocol::CallState::kPosted);
    call.set_inside(one.state == rank_protocol::CallState::kInside);
  }
  return diagnosis;
}

// Compares messages; an inner message with only defaults equals a missing one.
template <typename Message>
void expect_same(const Message& decoded, const Message& sent, int round) {
  google::protobuf::util::MessageDifferencer differencer;
  differencer.set_message_field_comparison(google::protobuf::util::MessageDifferencer::EQUIVALENT);
  std::string differences;
  differencer.ReportDifferencesToString(&differences);
  EXPECT_TRUE(differencer.Compare(sent, decoded)) << "round " << round << ": " << differences;
}

// Clears the fields of a rank that the core does not read.
void clear_unread(v1::RankStatus& rank) {
  rank.clear_pid();
  rank.clear_start_ticks();
  rank.clear_sequence();
  rank.clear_phase_milliseconds();  // The core reads them only from a diagnosis.
}

// --- Tests ---

TEST(DecodeReportTest, RegistrationIsDecodedCompletely) {
  for (int round = 0; round < kRandomRounds; ++round) {
    v1::Register hello;
    RandomMessage(round).fill(hello);
    const core::Registration decoded = decode(hello);
    hello.clear_leader_epoch();  // The reconciler reads this one.
    for (v1::AttemptInventory& item : *hello.mutable_inventory()) {
      for (v1::RankStatus& rank : *item.mutable_ranks()) clear_unread(rank);
    }
    expect_same(back(decoded), hello, round);
  }
}

TEST(DecodeReportTest, BeatIsDecodedCompletely) {
  for (int round = 0; round < kRandomRounds; ++round) {
    v1::WorkerMessage message;
    RandomMessage(round).fill(*message.mutable_beat());
    const core::NodeReport decoded = decode(message);
    message.mutable_beat()->clear_lease_epoch();
    for (v1::AttemptBeat& item : *message.mutable_beat()->mutable_attempts()) {
      for (v1::RankStatus& rank : *item.mutable_ranks()) clear_unread(rank);
    }
    expect_same(back(std::get<core::Beat>(decoded)), message.beat(), round);
  }
}

TEST(DecodeReportTest, AttemptReportIsDecodedCompletely) {
  for (int round = 0; round < kRandomRounds; ++round) {
    v1::WorkerMessage message;
    RandomMessage(round).fill(*message.mutable_attempt());
    const core::NodeReport decoded = decode(message);
    message.mutable_attempt()->clear_leader_epoch();  // The reconciler reads this one.
    expect_same(back(std::get<core::AttemptReport>(decoded)), message.attempt(), round);
  }
}

TEST(DecodeReportTest, RankEventsAreDecodedCompletely) {
  for (int round = 0; round < kRandomRounds; ++round) {
    RandomMessage random(round);
    v1::WorkerMessage message;
    random.fill(*message.mutable_events());
    for (v1::RankEvent& event : *message.mutable_events()->mutable_events()) {
      event.set_json(random.coin() ? "" : absl::StrCat(R"({"kind":"warning","message":")", random.text(), "\"}"));
    }
    expect_same(back(std::get<core::RankEvents>(decode(message))), message.events(), round);
  }
}

TEST(DecodeReportTest, DiagnosisIsDecodedCompletely) {
  for (int round = 0; round < kRandomRounds; ++round) {
    RandomMessage random(round);
    v1::WorkerMessage message;
    random.fill(*message.mutable_diagnosis());
    v1::RankDiagnosis& rank = *message.mutable_diagnosis()->mutable_rank();
    if (rank.groups().empty()) rank.clear_calls();
    for (v1::FlightCall& call : *rank.mutable_calls()) {
      call.set_group(static_cast<int>(random.number(0, rank.groups_size() - 1)));
      call.set_posted(call.posted() && !call.completed());
      call.set_inside(call.inside() && !call.completed() && !call.posted());
    }
    const core::NodeReport decoded = decode(message);
    const int64_t milliseconds = rank.status().phase_milliseconds();
    clear_unread(*rank.mutable_status());
    rank.mutable_status()->set_phase_milliseconds(milliseconds);
    rank.mutable_status()->clear_counter();
    rank.mutable_status()->clear_own_steps();
    rank.mutable_status()->clear_own_nanoseconds();
    expect_same(back(std::get<core::Diagnosis>(decoded)), message.diagnosis(), round);
  }
}

}  // namespace
}  // namespace titan::reconcile
