#pragma once

// What a step of the core wants done. The core itself does nothing: its shell writes, sends, answers and shows.

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

using RequestId = int64_t;  // Of a client who waits for an answer; 0: nobody does.
using Token = int64_t;      // Of a transaction whose outcome the core wants to hear; 0: it does not.

// Goes to the session if that still is open; every command is said again to a node's next session.
struct Send {
  SessionId session = 0;
  NodeCommand command;
};

struct Reply {
  RequestId request = 0;
  absl::Status status;
  std::string job;               // Uid: the answer is the job as it is shown then.
  JobViewPtr deleted;            // Or a job that is no more, as it was,
  std::optional<NodeView> node;  // or a node.
};

// For the metrics page.
struct Measure {
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
  double value = 0;   // Seconds, or bytes.
};

struct Release {
  std::vector<JobViewPtr> views;     // Shown first: who is answered or told finds them there.
  std::vector<std::string> deleted;  // Uids that are shown no more.
  std::vector<Send> sends;
  std::vector<Reply> replies;
  std::vector<journal::Line> lines;
  std::vector<Measure> measures;

  bool empty() const {
    return views.empty() && deleted.empty() && sends.empty() && replies.empty() && lines.empty() && measures.empty();
  }
};

// One transaction, and what happens once it is durable. Without mutations it waits for the transactions before it, so
// that nobody sees things in another order than they happened. A refused one (WhenFull::kRefuse, disk full) releases
// nothing: whoever waits is answered by the core, which hears of it by the token.
struct Change {
  std::vector<store::Mutation> mutations;
  std::vector<std::string> erased_prefixes;  // Every record below them, too.
  store::WhenFull when_full = store::WhenFull::kRetry;
  Release then;
  Token token = 0;
};

// What the ranks of an attempt did is to be compared, which takes its time and needs nothing else of the core. The
// answer is the input Compared.
struct Comparison {
  AttemptKey attempt;
  std::shared_ptr<const job::Findings> findings;
  std::string title;
};

struct Effects {
  Release now;  // Before anything is written: acknowledgements, errors, and the stop of what has failed.
  std::vector<std::pair<SessionId, std::string>> closes;  // Sessions that were replaced, and why.
  std::vector<Change> changes;                            // In this order.
  std::vector<Comparison> comparisons;
  absl::Status refused;  // Of a registration.
  // Records that make no sense, with what is wrong with them: kept for people, and not met again.
  std::vector<std::pair<store::Record, std::string>> set_aside;
  // Nodes that are shown otherwise from now on, as decided; nodes that are shown no more; and when others were heard
  // of.
  std::vector<NodeViewPtr> nodes;
  std::vector<std::string> nodes_gone;
  std::vector<std::pair<std::string, absl::Time>> beats;
  bool scheduled = false;      // The queue was walked: what the step took is a measure.
  int64_t kept_log_bytes = 0;  // Of the ends of failed ranks' logs, in all.
};

}  // namespace titan::core
