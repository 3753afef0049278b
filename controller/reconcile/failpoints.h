#pragma once

// Where a controller may be made to end, for tests: around each kind of record, each message and each answer. See
// common/service/failpoint.

#include <cstdint>

#include "controller/store/store.h"
#include "titan/v1/worker.pb.h"

namespace titan::reconcile::failpoints {

using Kinds = uint32_t;  // Of the records that a transaction changes, a bit each: what their keys begin with.

Kinds kinds_of(const store::Transaction& transaction);
void before_write(Kinds kinds);  // "write.KIND": on its way to the store.
void after_write(Kinds kinds);   // "durable.KIND": nobody has heard of it.

void before_answering();                                    // "release.answer": shown, not answered,
void before_sending();                                      // "release.send": answered, not sent.
void before_sending(const v1::ControllerMessage& message);  // "send.MESSAGE"
void before_hearing(const v1::WorkerMessage& message);      // "hear.MESSAGE"
void before_opening();                                      // "hear.register"
void after_asking();                                        // "ask.decided": a client's request, not yet durable.

}  // namespace titan::reconcile::failpoints
