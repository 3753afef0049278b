#pragma once

// What may happen to the core, as values: whoever has the same inputs has the same history.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock/now.h"
#include "controller/core/effect.h"
#include "controller/core/node_report.h"
#include "controller/job/diagnosis.h"
#include "controller/job/record.h"
#include "controller/job/update.h"

namespace titan::core {

// --- clients. Each is answered once under `request`, when its change is durable or with an error. `actor` is who asks,
// as whoever let the call in knows them; it is written beside what it changes. ---

// Errors: AlreadyExists (JOB_ID_IN_USE), FailedPrecondition (DUMP_FOLDER_IN_USE), InvalidArgument (REQUEST_ID_REUSED),
// ResourceExhausted (disk), `unfit`. The same request_id gives the same job again.
struct CreateJob {
  RequestId request = 0;
  std::string uid;  // Random, made by the shell.
  job::Spec spec;
  std::string stored;  // Of the specification's record, as bytes.
  std::string request_id;
  uint32_t fingerprint = 0;  // Of the request's content.
  std::string actor;         // Its owner.
  std::map<std::string, std::string> labels;
  std::string run_as;  // See job::JobRecord.
  bool run_as_local = false;
  absl::Status unfit;  // Why there shall be no new job, as its caller looked at the nodes.
};

// Idempotent. Errors: NotFound, FailedPrecondition for a job that is over in another way, unless the same request_id
// was accepted before; ResourceExhausted.
struct CancelJob {
  RequestId request = 0;
  std::string uid;
  bool now = false;  // Without saving.
  std::string actor;
  std::string request_id;
};

// Sets what is given. Idempotent: what is so already changes nothing. Errors: NotFound, FailedPrecondition (JOB_OVER;
// labels can be changed nevertheless), Aborted (ETAG_MISMATCH), InvalidArgument (LABELS_INVALID: too many),
// ResourceExhausted.
struct UpdateJob : job::Update {
  RequestId request = 0;
  std::string uid;
};

// Errors: NotFound, FailedPrecondition (JOB_NOT_RUNNING, CHECKPOINTS_DISABLED).
struct CheckpointJob {
  RequestId request = 0;
  std::string uid;
  std::string actor;
};

// Notes that ranks of the job are asked for a trace; the asking is the caller's. The newest attempt of the answer is
// the one that trains. Errors: NotFound, FailedPrecondition (JOB_OVER, JOB_NOT_RUNNING).
struct ProfileJob {
  RequestId request = 0;
  std::string uid;
  std::vector<int> ranks;
  int steps = 0;
  std::string actor;
};

// Takes a job that is over out of the store with its attempts and events; what lies in its dump folder stays. The
// answer is the job as it was. Errors: NotFound, FailedPrecondition (JOB_NOT_OVER), ResourceExhausted.
struct DeleteJob {
  RequestId request = 0;
  std::string uid;
  std::string actor;
};

// Errors: NotFound, ResourceExhausted.
struct CordonNode {
  RequestId request = 0;
  std::string node;
  bool cordoned = true;
  std::string reason;
  std::string actor;
};

// Cordons the node, and lets what it runs save and go on elsewhere. Idempotent. Errors: those of CordonNode.
struct DrainNode {
  RequestId request = 0;
  std::string node;
  std::string reason;
  std::string actor;
};

// Takes a node that is lost, and on which nothing is placed or may still run, out of the store with its events. The
// answer is the node as it was. Waits for room on a full disk. `force`: the caller knows that nothing runs there any
// more. Errors: NotFound, FailedPrecondition (NODE_NOT_LOST, NODE_IN_USE).
struct DeleteNode {
  RequestId request = 0;
  std::string node;
  std::string actor;
  bool force = false;
};

// Ends what a node runs of a job that this controller does not know: its ranks may save within `grace`. Errors:
// NotFound (NODE_NOT_FOUND, JOB_NOT_UNKNOWN), Unavailable.
struct StopUnknown {
  RequestId request = 0;
  std::string node;
  std::string uid;
  absl::Duration grace;
  std::string actor;
};

// --- workers. A session registers once; what a session says that is no longer its node's is ignored. ---

// Refused: InvalidArgument (BAD_NODE_ID), AlreadyExists (NODE_ID_IN_USE), Aborted (SESSION_REPLACED),
// FailedPrecondition (WRONG_CLUSTER).
struct OpenSession {
  SessionId session = 0;
  Registration hello;
  std::string peer = "";  // Where it comes from: "peer:ADDRESS".
};
struct Heard {
  std::string node;
  SessionId session = 0;
  NodeReport report;
};
struct CloseSession {
  std::string node;
  SessionId session = 0;
};

// --- the shell ---

struct Tick {};  // About ten times a second: leases, deadlines, backoffs.
// The transaction with this token is durable, or was refused; nothing else may come of it.
struct Durable {
  Token token = 0;
  absl::Status status;
};
// A Prepare could not be sent, since the job's specification cannot be read.
struct SpecUnreadable {
  std::string uid;
  int attempt = 0;
  std::string message;
  bool lost = true;  // Its record is: no later attempt would read it, either.
};

// What a Comparison has shown.
struct Compared {
  AttemptKey attempt;
  job::DiagnosisRecord record;
  bool stuck = false;  // As the findings had it.
};

using Input =
    std::variant<CreateJob, UpdateJob, CancelJob, CheckpointJob, ProfileJob, DeleteJob, CordonNode, DrainNode,
                 DeleteNode, StopUnknown, OpenSession, Heard, CloseSession, Tick, Durable, SpecUnreadable, Compared>;

}  // namespace titan::core
