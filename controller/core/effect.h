#pragma once

// Effects of a step of the core. The core itself does no I/O: its caller (controller/reconcile) writes, sends, answers
// and publishes.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/service/journal/line.h"
#include "controller/core/node_command.h"
#include "controller/core/node_report.h"
#include "controller/core/view.h"
#include "controller/job/diagnosis.h"
#include "controller/store/store.h"

namespace titan::core {

using RequestId = int64_t;    // Identifies a client call that waits for an answer. 0: nobody waits.
using ChangeToken = int64_t;  // Identifies a transaction whose outcome comes back as the input Durable. 0: it does not.

// A command to a session. It is dropped if the session has closed: a command that still matters is sent again to the
// node's next session.
struct Send {
  SessionId session = 0;
  NodeCommand command;
};

struct Reply {
  RequestId request = 0;
  absl::Status status;
  std::string job;               // Uid. The answer is the job's view at the time of the reply.
  JobViewPtr deleted;            // Instead of `job`: the last view of a deleted job.
  std::optional<NodeView> node;  // Instead of `job`: a node.
};

// One sample for the metrics page.
struct MetricSample {
  enum Kind {
    kAttemptEnded,
    kLost,
    kRecovered,
    kCheckpoint,
    kCheckpointStall,
    kCheckpointFailed,
    kQueueWait,
    kNodeRefused,
    kLogsDropped
  };
  Kind kind = kAttemptEnded;
  std::string label;  // Cause, phase or reason.
  double value = 0;   // Seconds, bytes, or 1 for an event that is counted.
};

// Everything that becomes visible at one moment.
struct Release {
  std::vector<JobViewPtr> views;     // Published first, so that a client that is answered or notified finds them.
  std::vector<std::string> deleted;  // Uids that are no longer shown.
  std::vector<Send> sends;
  std::vector<Reply> replies;
  std::vector<journal::Line> lines;
  std::vector<MetricSample> measures;

  bool empty() const {
    return views.empty() && deleted.empty() && sends.empty() && replies.empty() && lines.empty() && measures.empty();
  }
};

// One transaction, and what it releases once it is durable. Without mutations it waits for the transactions before it,
// so that clients see events in the order in which they happened. A refused transaction (WhenFull::kRefuse, disk full)
// releases nothing: the core learns of it by the token and answers the waiting clients itself.
struct Change {
  std::vector<store::Mutation> mutations;
  std::vector<std::string> erased_prefixes;  // Every record below these prefixes is erased, too.
  store::WhenFull when_full = store::WhenFull::kRetry;
  Release then;
  ChangeToken token = 0;
};

// A request to compare what the ranks of an attempt did. The comparison takes long and reads nothing else, so the
// caller can run it without a lock. Its result comes back as the input Compared.
struct Comparison {
  AttemptKey attempt;
  std::shared_ptr<const job::Findings> findings;
  std::string title;
};

struct Effects {
  // Released without waiting for the changes below: acknowledgements of beats, errors, and commands that stop a failed
  // attempt.
  Release now;
  std::vector<std::pair<SessionId, std::string>> closes;  // Replaced sessions to close, with the reason.
  std::vector<Change> changes;                            // Written in this order.
  std::vector<Comparison> comparisons;
  absl::Status refused;  // Why a registration was refused. Ok: none was.
  // Records that cannot be used, with the reason. The caller moves them out of the way, where people can read them.
  std::vector<std::pair<store::Record, std::string>> set_aside;
  // `nodes` has the new views of nodes that changed, as decided. `nodes_gone` names nodes that are no longer shown.
  // `beats` has the times at which nodes were last heard of.
  std::vector<NodeViewPtr> nodes;
  std::vector<std::string> nodes_gone;
  std::vector<std::pair<std::string, absl::Time>> beats;
  bool scheduled = false;      // True if a scheduling cycle ran: the caller measures the step's duration.
  int64_t kept_log_bytes = 0;  // Total bytes of the stored ends of failed ranks' logs.
};

}  // namespace titan::core
