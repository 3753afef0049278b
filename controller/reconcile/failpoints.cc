#include "controller/reconcile/failpoints.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "common/service/failpoint/failpoint.h"
#include "controller/core/keys.h"

namespace titan::reconcile::failpoints {
namespace {

using failpoint::Failpoint;

// A kind of record, with its failpoints before the write and once it is durable.
struct Kind {
  std::string_view name;
  Failpoint write, durable;
};
Kind record_kinds[] = {{"job", Failpoint("write.job"), Failpoint("durable.job")},
                       {"spec", Failpoint("write.spec"), Failpoint("durable.spec")},
                       {"deleted", Failpoint("write.deleted"), Failpoint("durable.deleted")},
                       {"cancel", Failpoint("write.cancel"), Failpoint("durable.cancel")},
                       {"attempt", Failpoint("write.attempt"), Failpoint("durable.attempt")},
                       {"exit", Failpoint("write.exit"), Failpoint("durable.exit")},
                       {"failed_log", Failpoint("write.failed_log"), Failpoint("durable.failed_log")},
                       {"error", Failpoint("write.error"), Failpoint("durable.error")},
                       {"refusal", Failpoint("write.refusal"), Failpoint("durable.refusal")},
                       {"diagnosis", Failpoint("write.diagnosis"), Failpoint("durable.diagnosis")},
                       {"node", Failpoint("write.node"), Failpoint("durable.node")},
                       {"progress", Failpoint("write.progress"), Failpoint("durable.progress")},
                       {"cursor", Failpoint("write.cursor"), Failpoint("durable.cursor")},
                       {"event", Failpoint("write.event"), Failpoint("durable.event")},
                       {"update", Failpoint("write.update"), Failpoint("durable.update")},
                       {"erase", Failpoint("write.erase"), Failpoint("durable.erase")}};
constexpr size_t kErase = std::size(record_kinds) - 1;  // Erases all records below a prefix.
static_assert(kErase == core::kRecordKinds.size());

Failpoint answer_point("release.answer"), send_point("release.send"), register_point("hear.register"),
    decided_point("ask.decided");
Failpoint welcome_point("send.welcome"), prepare_point("send.prepare"), start_point("send.start"),
    stop_point("send.stop"), events_ack_point("send.events_ack"), checkpoint_point("send.checkpoint"),
    forget_point("send.forget"), beat_ack_point("send.beat_ack"), diagnose_point("send.diagnose");
Failpoint beat_point("hear.beat"), attempt_point("hear.attempt"), events_point("hear.events"),
    diagnosis_point("hear.diagnosis");

void pass(Failpoint Kind::*point, Kinds kinds) {
  for (size_t i = 0; i < std::size(record_kinds); ++i) {
    if ((kinds >> i & 1) != 0) (record_kinds[i].*point).pass();
  }
}

}  // namespace

Kinds kinds_of(const store::Transaction& transaction) {
  Kinds kinds = transaction.erased_prefixes.empty() ? 0 : Kinds{1} << kErase;
  for (const store::Mutation& mutation : transaction.mutations) {
    const std::string_view name = std::string_view(mutation.key).substr(0, mutation.key.find('/'));
    const auto* const found = std::find_if(std::begin(record_kinds), std::end(record_kinds),
                                           [&](const Kind& kind) { return kind.name == name; });
    if (found != std::end(record_kinds)) kinds |= Kinds{1} << (found - std::begin(record_kinds));
  }
  return kinds;
}

void before_write(Kinds kinds) { pass(&Kind::write, kinds); }
void after_write(Kinds kinds) { pass(&Kind::durable, kinds); }
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
    case v1::ControllerMessage::kDiagnose:
      return diagnose_point.pass();
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
    case v1::WorkerMessage::kDiagnosis:
      return diagnosis_point.pass();
    case v1::WorkerMessage::kEvents:
      return events_point.pass();
    case v1::WorkerMessage::kRegister:  // It opens a session and is not one of its messages.
    case v1::WorkerMessage::kLog:
    case v1::WorkerMessage::kTrace:
    case v1::WorkerMessage::KIND_NOT_SET:
      return;
  }
}

}  // namespace titan::reconcile::failpoints
