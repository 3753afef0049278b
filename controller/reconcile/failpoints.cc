#include "controller/reconcile/failpoints.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "common/failpoint/failpoint.h"

namespace titan::reconcile::failpoints {
namespace {

using failpoint::Point;

constexpr std::string_view kKinds[] = {"job",  "spec",     "deleted", "cancel", "attempt", "exit",
                                       "node", "progress", "cursor",  "event",  "erase"};
constexpr size_t kErase = std::size(kKinds) - 1;  // Of all records below a prefix.

Point write_points[] = {Point("write.job"),     Point("write.spec"),  Point("write.deleted"), Point("write.cancel"),
                        Point("write.attempt"), Point("write.exit"),  Point("write.node"),    Point("write.progress"),
                        Point("write.cursor"),  Point("write.event"), Point("write.erase")};
Point durable_points[] = {Point("durable.job"),    Point("durable.spec"),     Point("durable.deleted"),
                          Point("durable.cancel"), Point("durable.attempt"),  Point("durable.exit"),
                          Point("durable.node"),   Point("durable.progress"), Point("durable.cursor"),
                          Point("durable.event"),  Point("durable.erase")};
static_assert(std::size(write_points) == std::size(kKinds) && std::size(durable_points) == std::size(kKinds));

Point answer_point("release.answer"), send_point("release.send"), register_point("hear.register"),
    decided_point("ask.decided");
Point welcome_point("send.welcome"), prepare_point("send.prepare"), start_point("send.start"), stop_point("send.stop"),
    events_ack_point("send.events_ack"), checkpoint_point("send.checkpoint"), forget_point("send.forget"),
    beat_ack_point("send.beat_ack");
Point beat_point("hear.beat"), attempt_point("hear.attempt"), events_point("hear.events");

void pass(Point (&points)[std::size(kKinds)], Kinds kinds) {
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    if ((kinds >> i & 1) != 0) points[i].pass();
  }
}

}  // namespace

Kinds kinds_of(const store::Transaction& transaction) {
  Kinds kinds = transaction.erased_prefixes.empty() ? 0 : Kinds{1} << kErase;
  for (const store::Mutation& mutation : transaction.mutations) {
    const std::string_view kind = std::string_view(mutation.key).substr(0, mutation.key.find('/'));
    const auto* const found = std::find(std::begin(kKinds), std::end(kKinds), kind);
    if (found != std::end(kKinds)) kinds |= Kinds{1} << (found - std::begin(kKinds));
  }
  return kinds;
}

void before_write(Kinds kinds) { pass(write_points, kinds); }
void after_write(Kinds kinds) { pass(durable_points, kinds); }
void before_answering() { answer_point.pass(); }
void before_sending() { send_point.pass(); }
void before_opening() { register_point.pass(); }
void after_asking() { decided_point.pass(); }

void before_sending(const v1::ControllerMessage& message) {
  switch (message.kind_case()) {
    case v1::ControllerMessage::kWelcome:
      return welcome_point.pass();
    case v1::ControllerMessage::kPrepare:
      return prepare_point.pass();
    case v1::ControllerMessage::kStart:
      return start_point.pass();
    case v1::ControllerMessage::kStop:
      return stop_point.pass();
    case v1::ControllerMessage::kEventsAck:
      return events_ack_point.pass();
    case v1::ControllerMessage::kCheckpoint:
      return checkpoint_point.pass();
    case v1::ControllerMessage::kForget:
      return forget_point.pass();
    case v1::ControllerMessage::kBeatAck:
      return beat_ack_point.pass();
    case v1::ControllerMessage::kReadLog:  // Changes nothing.
    case v1::ControllerMessage::kReadTrace:
    case v1::ControllerMessage::KIND_NOT_SET:
      return;
  }
}

void before_hearing(const v1::WorkerMessage& message) {
  switch (message.kind_case()) {
    case v1::WorkerMessage::kBeat:
      return beat_point.pass();
    case v1::WorkerMessage::kAttempt:
      return attempt_point.pass();
    case v1::WorkerMessage::kEvents:
      return events_point.pass();
    case v1::WorkerMessage::kRegister:  // Opens a session, and is none of its messages.
    case v1::WorkerMessage::kLog:
    case v1::WorkerMessage::kTrace:
    case v1::WorkerMessage::KIND_NOT_SET:
      return;
  }
}

}  // namespace titan::reconcile::failpoints
