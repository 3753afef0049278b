#pragma once

// Commands to nodes, as values. Every command may be repeated. One that still matters is sent again to a node's next
// session.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/rank_protocol/launch.h"
#include "controller/core/stray.h"

namespace titan::core {

struct Welcome {
  int64_t lease_epoch = 0;
  absl::Duration lease;
  std::string cluster;  // Random id of the store. Identifies the cluster.
};
struct BeatAck {
  int64_t sequence = 0;
};
struct EventsAck {
  AttemptKey attempt;
  int rank = 0;
  int64_t sequence = 0;  // Events up to and including this one are durable.
};

struct Prepare {
  AttemptKey attempt;
  bool leader = false;       // The node runs rank 0 and hosts the store where the ranks meet.
  std::vector<int> ranks;    // Ranks of this node, in local order.
  std::vector<int> devices;  // devices[i] is the device of ranks[i]. Empty: the node chooses.
  std::string dump_folder;
  std::string token;      // The leader writes it into the dump folder; the others read it there.
  std::string folder_id;  // Expected id of the dump folder. Empty: not known yet.
  std::string run_as;     // See job::JobRecord.
  bool run_as_local = false;
  absl::Duration deadline;  // Time to prepare. Zero: the node uses its default.
  double orphan_timeout_seconds = 0;
  // Launch settings of its ranks except the job's configuration, which the caller reads from the store and adds. Shared
  // by all nodes of the attempt.
  std::shared_ptr<const rank_protocol::Launch> launch;
};
struct Start {
  AttemptKey attempt;
  std::string store_host;
  int store_port = 0;
};
struct Checkpoint {
  AttemptKey attempt;
};
struct Stop {
  AttemptKey attempt;
  bool save = false;             // Save at a step edge first.
  absl::Duration grace;          // Time until SIGKILL. Zero: kill at once.
  std::string reason;            // UPPER_SNAKE.
  absl::Duration deadline;       // Time after which the node reports ranks that are not gone. Zero: its default.
  std::vector<int> named_ranks;  // Ranks named in the attempt's verdict. The node sends the ends of their logs.
};
struct Diagnose {
  AttemptKey attempt;
  absl::Duration deadline;  // Time to answer.
  int max_calls = 0;        // Per rank, the newest ones.
};
struct Forget {
  AttemptKey attempt;
};

using NodeCommand = std::variant<Welcome, BeatAck, EventsAck, Prepare, Start, Checkpoint, Stop, Diagnose, Forget>;

}  // namespace titan::core
