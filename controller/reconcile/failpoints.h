#pragma once

// Failpoints where tests can end a controller: around each kind of record, each message and each answer. See
// common/service/failpoint.

#include <cstdint>

#include "controller/store/store.h"
#include "titan/v1/worker.pb.h"

namespace titan::reconcile::failpoints {

using Kinds = uint32_t;  // A bit for each kind of record that a transaction changes.

Kinds kinds_of(const store::Transaction& transaction);
void before_write(Kinds kinds);  // "write.KIND": before it is passed to the store.
void after_write(Kinds kinds);   // "durable.KIND": nobody has been notified yet.

void before_answering();                                    // "release.answer": published, not answered.
void before_sending();                                      // "release.send": answered, not sent.
void before_sending(const v1::ControllerMessage& message);  // "send.MESSAGE"
void before_hearing(const v1::WorkerMessage& message);      // "hear.MESSAGE"
void before_opening();                                      // "hear.register"
void after_asking();  // "ask.decided": a client's request was decided and is not durable yet.

}  // namespace titan::reconcile::failpoints
