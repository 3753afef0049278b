#include "controller/reconcile/encode_command.h"

#include <variant>

namespace titan::reconcile {
namespace {

void put(v1::AttemptId* id, const core::AttemptKey& attempt) {
  id->set_job_uid(attempt.first);
  id->set_number(attempt.second);
}

void put(v1::ControllerMessage& message, const core::Welcome& command) {
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_lease_epoch(command.lease_epoch);
  welcome.set_lease_milliseconds(absl::ToInt64Milliseconds(command.lease));
  welcome.set_cluster(command.cluster);
}

void put(v1::ControllerMessage& message, const core::BeatAck& command) {
  message.mutable_beat_ack()->set_sequence(command.sequence);
}

void put(v1::ControllerMessage& message, const core::EventsAck& command) {
  v1::EventsAck& ack = *message.mutable_events_ack();
  put(ack.mutable_id(), command.attempt);
  ack.set_rank(command.rank);
  ack.set_sequence(command.sequence);
}

void put(v1::ControllerMessage& message, const core::Prepare& command) {
  v1::Prepare& prepare = *message.mutable_prepare();
  put(prepare.mutable_id(), command.attempt);
  prepare.set_leader(command.leader);
  prepare.mutable_ranks()->Assign(command.ranks.begin(), command.ranks.end());
  prepare.mutable_device_indices()->Assign(command.devices.begin(), command.devices.end());
  prepare.set_dump_folder(command.dump_folder);
  prepare.set_token(command.token);
  prepare.set_folder_id(command.folder_id);
  prepare.set_run_as(command.run_as);
  prepare.set_run_as_local(command.run_as_local);
  prepare.set_deadline_milliseconds(absl::ToInt64Milliseconds(command.deadline));
  prepare.set_orphan_timeout_seconds(command.orphan_timeout_seconds);
}

void put(v1::ControllerMessage& message, const core::Start& command) {
  v1::Start& start = *message.mutable_start();
  put(start.mutable_id(), command.attempt);
  start.set_store_host(command.store_host);
  start.set_store_port(command.store_port);
}

void put(v1::ControllerMessage& message, const core::Checkpoint& command) {
  put(message.mutable_checkpoint()->mutable_id(), command.attempt);
}

void put(v1::ControllerMessage& message, const core::Stop& command) {
  v1::Stop& stop = *message.mutable_stop();
  put(stop.mutable_id(), command.attempt);
  stop.set_save(command.save);
  stop.set_grace_milliseconds(absl::ToInt64Milliseconds(command.grace));
  stop.set_reason(command.reason);
  stop.set_deadline_milliseconds(absl::ToInt64Milliseconds(command.deadline));
  stop.mutable_named_ranks()->Assign(command.named_ranks.begin(), command.named_ranks.end());
}

void put(v1::ControllerMessage& message, const core::Diagnose& command) {
  v1::Diagnose& diagnose = *message.mutable_diagnose();
  put(diagnose.mutable_id(), command.attempt);
  diagnose.set_stacks(true);
  diagnose.set_deadline_milliseconds(absl::ToInt64Milliseconds(command.deadline));
  diagnose.set_most_calls(command.max_calls);
}

void put(v1::ControllerMessage& message, const core::Forget& command) {
  put(message.mutable_forget()->mutable_id(), command.attempt);
}

}  // namespace

v1::ControllerMessage encode(const core::NodeCommand& command) {
  v1::ControllerMessage message;
  std::visit([&](const auto& what) { put(message, what); }, command);
  return message;
}

}  // namespace titan::reconcile
