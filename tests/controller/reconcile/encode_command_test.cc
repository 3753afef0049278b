#include "controller/reconcile/encode_command.h"

#include <set>

#include "gtest/gtest.h"
#include "tests/controller/reconcile/random_message.h"

namespace titan::reconcile {
namespace {

// --- Inverse functions, which reveal fields that are lost or mixed up ---

core::AttemptKey back(const v1::AttemptId& id) { return {id.job_uid(), id.number()}; }

core::NodeCommand back(const v1::Prepare& from) {
  core::Prepare prepare;
  prepare.attempt = back(from.id());
  prepare.leader = from.leader();
  prepare.ranks.assign(from.ranks().begin(), from.ranks().end());
  prepare.devices.assign(from.device_indices().begin(), from.device_indices().end());
  prepare.dump_folder = from.dump_folder();
  prepare.token = from.token();
  prepare.folder_id = from.folder_id();
  prepare.run_as = from.run_as();
  prepare.run_as_local = from.run_as_local();
  prepare.deadline = absl::Milliseconds(from.deadline_milliseconds());
  prepare.orphan_timeout_seconds = from.orphan_timeout_seconds();
  return prepare;
}

core::NodeCommand back(const v1::Stop& from) {
  core::Stop stop;
  stop.attempt = back(from.id());
  stop.save = from.save();
  stop.grace = absl::Milliseconds(from.grace_milliseconds());
  stop.reason = from.reason();
  stop.deadline = absl::Milliseconds(from.deadline_milliseconds());
  stop.named_ranks.assign(from.named_ranks().begin(), from.named_ranks().end());
  return stop;
}

core::NodeCommand back(const v1::ControllerMessage& from) {
  switch (from.kind_case()) {
    case v1::ControllerMessage::kWelcome:
      return core::Welcome{from.welcome().lease_epoch(), absl::Milliseconds(from.welcome().lease_milliseconds()),
                           from.welcome().cluster()};
    case v1::ControllerMessage::kBeatAck:
      return core::BeatAck{from.beat_ack().sequence()};
    case v1::ControllerMessage::kEventsAck:
      return core::EventsAck{back(from.events_ack().id()), from.events_ack().rank(), from.events_ack().sequence()};
    case v1::ControllerMessage::kPrepare:
      return back(from.prepare());
    case v1::ControllerMessage::kStart:
      return core::Start{back(from.start().id()), from.start().store_host(), from.start().store_port()};
    case v1::ControllerMessage::kCheckpoint:
      return core::Checkpoint{back(from.checkpoint().id())};
    case v1::ControllerMessage::kStop:
      return back(from.stop());
    case v1::ControllerMessage::kDiagnose:
      return core::Diagnose{back(from.diagnose().id()), absl::Milliseconds(from.diagnose().deadline_milliseconds()),
                            from.diagnose().most_calls()};
    default:
      return core::Forget{back(from.forget().id())};
  }
}

// Returns a message of each kind that the core sends; ids are always set.
v1::ControllerMessage random_command(int round) {
  RandomMessage random(round);
  v1::ControllerMessage message;
  switch (round % 9) {
    case 0:
      random.fill(*message.mutable_welcome());
      return message;
    case 1:
      random.fill(*message.mutable_beat_ack());
      return message;
    case 2:
      random.fill(*message.mutable_events_ack());
      message.mutable_events_ack()->mutable_id();
      return message;
    case 3:
      random.fill(*message.mutable_prepare());
      message.mutable_prepare()->mutable_id();
      message.mutable_prepare()->clear_launch_json();  // Sent separately.
      return message;
    case 4:
      random.fill(*message.mutable_start());
      message.mutable_start()->mutable_id();
      return message;
    case 5:
      random.fill(*message.mutable_checkpoint());
      message.mutable_checkpoint()->mutable_id();
      return message;
    case 6:
      random.fill(*message.mutable_stop());
      message.mutable_stop()->mutable_id();
      return message;
    case 7:
      random.fill(*message.mutable_diagnose());
      message.mutable_diagnose()->mutable_id();
      message.mutable_diagnose()->set_stacks(true);
      return message;
    default:
      random.fill(*message.mutable_forget());
      message.mutable_forget()->mutable_id();
      return message;
  }
}

TEST(EncodeCommandTest, EveryCommandIsEncodedCompletely) {
  std::set<size_t> kinds;
  for (int round = 0; round < 9 * kRandomRounds; ++round) {
    const v1::ControllerMessage message = random_command(round);
    const core::NodeCommand command = back(message);
    kinds.insert(command.index());
    EXPECT_EQ(encode(command).SerializeAsString(), message.SerializeAsString()) << message.DebugString();
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<core::NodeCommand>);
}

// Fields with their default are not sent: workers assume the default.
TEST(EncodeCommandTest, DefaultsTakeNoBytes) {
  EXPECT_EQ(encode(core::BeatAck{}).ByteSizeLong(), 2);
  EXPECT_EQ(encode(core::Forget{}).ByteSizeLong(), 4);
  const v1::ControllerMessage prepare = encode(core::Prepare{});
  EXPECT_EQ(prepare.prepare().ByteSizeLong(), 2);
  EXPECT_EQ(prepare.leader_epoch(), 0);
  const v1::ControllerMessage stop = encode(core::Stop{});
  EXPECT_EQ(stop.stop().ByteSizeLong(), 2);
}

// Rounded down, so that a worker never gets more time than intended.
TEST(EncodeCommandTest, TimesAreRoundedDownToMilliseconds) {
  const core::Stop stop{.grace = absl::Microseconds(1999), .deadline = absl::Seconds(1) + absl::Nanoseconds(1)};
  EXPECT_EQ(encode(stop).stop().grace_milliseconds(), 1);
  EXPECT_EQ(encode(stop).stop().deadline_milliseconds(), 1000);
}

}  // namespace
}  // namespace titan::reconcile
