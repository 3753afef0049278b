#pragma once

// Inputs of the core, as values. The same inputs at the same times lead to the same decisions.

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

// --- Clients. Each request is answered once under `request`: when its change is durable, or with an error. `actor` is
// the authenticated caller and is recorded with the change. ---

// Creates a job. A repeated request_id gets the same job again. Errors: AlreadyExists (JOB_ID_IN_USE, JOB_DELETED),
// FailedPrecondition (DUMP_FOLDER_IN_USE), InvalidArgument (REQUEST_ID_REUSED), ResourceExhausted (disk), and `unfit`.
struct CreateJob {
  RequestId request = 0;
  std::string uid;  // Random, chosen by the sender of the input.
  job::SchedulingSpec spec;
  std::string stored;  // Encoded record of the full specification.
  std::string request_id;
  uint32_t fingerprint = 0;  // CRC of the request's content.
  std::string actor;         // Becomes the job's owner.
  std::map<std::string, std::string> labels;
  std::string run_as;  // See job::JobRecord.
  bool run_as_local = false;
  // Error for a new job that the nodes cannot hold, as found by the sender. A repeated request ignores it.
  absl::Status unfit;
};

// Cancels a job. Idempotent. Errors: NotFound, FailedPrecondition (JOB_OVER) for a job that ended in another way,
// unless the same request_id was accepted before, and ResourceExhausted.
struct CancelJob {
  RequestId request = 0;
  std::string uid;
  bool now = false;  // Do not save first.
  std::string actor;
  std::string request_id;
};

// Changes the given fields. Idempotent: a value that is set already changes nothing. Errors: NotFound,
// FailedPrecondition (JOB_OVER: labels can still be changed), Aborted (ETAG_MISMATCH), InvalidArgument (LABELS_INVALID:
// too many), ResourceExhausted.
struct UpdateJob : job::Update {
  RequestId request = 0;
  std::string uid;
};

// Saves a checkpoint at the next step edge. Errors: NotFound, FailedPrecondition (JOB_OVER, JOB_NOT_RUNNING,
// CHECKPOINTS_DISABLED).
struct CheckpointJob {
  RequestId request = 0;
  std::string uid;
  std::string actor;
};

// Records that a trace of the job's ranks was requested. The sender of the input passes the request to the ranks. The
// newest attempt in the answer is the one that trains. Errors: NotFound, FailedPrecondition (JOB_OVER,
// JOB_NOT_RUNNING).
struct ProfileJob {
  RequestId request = 0;
  std::string uid;
  std::vector<int> ranks;
  int steps = 0;
  std::string actor;
};

// Deletes an ended job with its attempts and events from the store. The files in its dump folder stay. The answer is
// the job's last view. Errors: NotFound, FailedPrecondition (JOB_NOT_OVER), ResourceExhausted.
struct DeleteJob {
  RequestId request = 0;
  std::string uid;
  std::string actor;
};

// Cordons the node, or puts it back into service. Errors: NotFound, ResourceExhausted.
struct CordonNode {
  RequestId request = 0;
  std::string node;
  bool cordoned = true;
  std::string reason;
  std::string actor;
};

// Cordons the node and lets its ranks save and continue elsewhere. Idempotent. Errors: those of CordonNode.
struct DrainNode {
  RequestId request = 0;
  std::string node;
  std::string reason;
  std::string actor;
};

// Deletes a lost node with its events from the store, if nothing is placed there or may still run there. `force`: the
// caller knows that nothing runs there any more. The answer is the node's last view. On a full disk it waits for space.
// Errors: NotFound, FailedPrecondition (NODE_NOT_LOST, NODE_IN_USE).
struct DeleteNode {
  RequestId request = 0;
  std::string node;
  std::string actor;
  bool force = false;
};

// Stops what a node runs of a job that this controller does not know. Its ranks may save within `grace`. Errors:
// NotFound (NODE_NOT_FOUND, JOB_NOT_UNKNOWN), Unavailable (NODE_UNREACHABLE).
struct StopUnknown {
  RequestId request = 0;
  std::string node;
  std::string uid;
  absl::Duration grace;
  std::string actor;
};

// --- Workers. A session registers once. Its messages are ignored once its node has a newer session. ---

// Registers a node. Effects::refused gets: InvalidArgument (BAD_NODE_ID, BAD_DEVICES), AlreadyExists (NODE_ID_IN_USE),
// Aborted (SESSION_REPLACED), FailedPrecondition (WRONG_CLUSTER).
struct OpenSession {
  SessionId session = 0;
  Registration hello;
  std::string peer = "";  // Address of the worker: "peer:ADDRESS".
};
struct MessageReceived {
  std::string node;
  SessionId session = 0;
  NodeReport report;
};
struct CloseSession {
  std::string node;
  SessionId session = 0;
};

// --- The process around the core ---

struct Tick {};  // About ten times a second: checks leases, deadlines and backoffs.
// The transaction with this token is durable or was refused. Sent once per token.
struct Durable {
  ChangeToken token = 0;
  absl::Status status;
};
// A Prepare could not be sent because the job's specification could not be read.
struct SpecUnreadable {
  std::string uid;
  int attempt = 0;
  std::string message;
  bool lost = true;  // The record itself is lost, so that no later attempt can read it either.
};

// The result of a Comparison.
struct Compared {
  AttemptKey attempt;
  job::DiagnosisRecord record;
  bool stuck = false;  // Copied from the findings.
};

using Input = std::variant<CreateJob, UpdateJob, CancelJob, CheckpointJob, ProfileJob, DeleteJob, CordonNode, DrainNode,
                           DeleteNode, StopUnknown, OpenSession, MessageReceived, CloseSession, Tick, Durable,
                           SpecUnreadable, Compared>;

}  // namespace titan::core
