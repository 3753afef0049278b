#pragma once

// What a node is told, as values. Every command may be repeated, and is repeated to a node's next session.

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
  std::string cluster;  // Random id of the store.
};
struct BeatAck {
  int64_t sequence = 0;
};
struct EventsAck {
  AttemptKey attempt;
  int rank = 0;
  int64_t sequence = 0;  // Durable up to and including this one.
};

struct Prepare {
  AttemptKey attempt;
  bool leader = false;       // The node runs rank 0 and hosts the store where the ranks meet.
  std::vector<int> ranks;    // Of this node, in local order.
  std::vector<int> devices;  // devices[i] is that of ranks[i]; empty: the node chooses.
  std::string dump_folder;
  std::string token;      // The leader writes it into the dump folder; the others read it there.
  std::string folder_id;  // Empty: not known.
  std::string run_as;     // See job::JobRecord.
  bool run_as_local = false;
  absl::Duration deadline;  // Zero: the node's own patience.
  double orphan_timeout_seconds = 0;
  // What its ranks are launched with but for the job's configuration, which the shell reads from the store and adds.
  // Shared by all nodes of the attempt.
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
  bool save = false;             // At a step edge, first.
  absl::Duration grace;          // SIGKILL after this; zero: at once.
  std::string reason;            // UPPER_SNAKE.
  absl::Duration deadline;       // What is not gone by then is reported; zero: the node's own patience.
  std::vector<int> named_ranks;  // The attempt's verdict names them: the ends of their logs are wanted.
};
struct Diagnose {
  AttemptKey attempt;
  absl::Duration deadline;
  int most_calls = 0;  // Of each rank, the newest ones.
};
struct Forget {
  AttemptKey attempt;
};

using NodeCommand = std::variant<Welcome, BeatAck, EventsAck, Prepare, Start, Checkpoint, Stop, Diagnose, Forget>;

}  // namespace titan::core
