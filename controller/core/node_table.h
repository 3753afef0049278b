#pragma once

// The nodes: what each offers, its session, and how long it has been silent. It has no locks: its owner synchronizes.

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/core/node_report.h"
#include "controller/job/record.h"

namespace titan::core {

// Upper bound on the devices that a worker may report, since the scheduler keeps an entry for each.
inline constexpr int kMaxDevices = 4096;

enum class NodeState {
  kReconciling,  // Known, but not registered since the controller's start, or about to be compared with the records.
  kReady,
  kLost,         // Its lease expired, and nothing shows that its ranks still run.
  kUnreachable,  // Its lease expired, but beacons on other nodes show that its job advances.
  kRefused,      // In views only: its worker was refused, and the node has no session.
  kUnusable,     // In views only: it is connected and cannot prepare ranks.
};
absl::string_view name(NodeState state);

inline constexpr char kSessionReplaced[] = "SESSION_REPLACED";

struct Node {
  job::NodeRecord record;
  NodeState state = NodeState::kReconciling;
  SessionId session = 0;                // 0: no open session.
  absl::Duration last_beat;             // Monotonic time at which both sides last heard each other.
  bool deaf = false;                    // Its messages arrive, but the controller's do not reach it.
  absl::Time last_beat_time;            // For display.
  bool diagnoses = false;               // Its worker answers Diagnose, as its Register says.
  std::string boot_id;                  // Boot of its machine, from its Register.
  int64_t boot_nanoseconds = 0;         // Time since that boot when the Register was written.
  bool suspect = false;                 // It missed three beats, or its stream broke: nothing new is placed there.
  int sessions_here = 0;                // Sessions since this process started.
  SessionId foreign_warned = 0;         // Session in which a report on other nodes' attempts was last recorded.
  std::deque<absl::Duration> sessions;  // Start times of the sessions of the last minute.
  bool flapping = false;  // Its link went up and down many times within a minute, and has not been steady since.

  std::string unusable;        // Why its worker cannot prepare ranks. Empty: it can.
  absl::Duration clock_ahead;  // Its clock minus the controller's, if they differ by much. Else zero.

  // True if messages arrive in both directions.
  bool speaks() const { return state == NodeState::kReady && session != 0 && !suspect; }
  bool can_take_ranks() const { return speaks() && unusable.empty(); }
};

class NodeTable {
 public:
  NodeTable(absl::Duration lease, absl::Duration beat) : lease_(lease), beat_(beat) {}

  // Adds a node of the store after a restart of the controller. Its lease starts at `now`.
  void restore(job::NodeRecord record, absl::Duration now);

  void remove(const std::string& name) { nodes_.erase(name); }

  // Opens a session. The node's record gets the next lease epoch and the worker's properties. The caller closes the
  // session that it replaces (0: none). Errors: InvalidArgument (BAD_NODE_ID, BAD_DEVICES), AlreadyExists
  // (NODE_ID_IN_USE) while another worker holds the id, Aborted (SESSION_REPLACED) if the worker has begun a later
  // session since, so that this one is out of date.
  struct Opened {
    Node* node = nullptr;
    SessionId replaced = 0;
  };
  absl::StatusOr<Opened> open_session(const Registration& hello, SessionId session, absl::Duration now,
                                      absl::Time wall);
  // Returns the node if this is still its session, else nullptr.
  Node* owner(const std::string& node, SessionId session);
  // Ends the session. Does nothing if the node has another one by now.
  void close_session(const std::string& node, SessionId session);
  // Renews the lease. `unanswered`: how long the node has heard nothing although its messages arrive. The lease counts
  // from when both sides could be heard.
  void beat(Node& node, absl::Duration now, absl::Time wall, absl::Duration unanswered = absl::ZeroDuration());

  Node* find(const std::string& name);
  const Node* find(const std::string& name) const;
  std::map<std::string, Node>& all() { return nodes_; }
  const std::map<std::string, Node>& all() const { return nodes_; }

  bool lease_over(const Node& node, absl::Duration now) const { return now - node.last_beat > lease_; }
  // Extends every lease by a pause in which the controller itself heard nobody.
  void excuse(absl::Duration pause, absl::Duration now);
  // Marks a node that began eight sessions within a minute. Returns true if it was not marked before. end_flapping()
  // removes the marks of nodes without a new session for a minute and returns these nodes.
  bool mark_flapping(Node& node, absl::Duration now);
  std::vector<Node*> end_flapping(absl::Duration now);
  // Marks the nodes that missed three beats. Returns those that were not marked before.
  std::vector<const Node*> mark_suspects(absl::Duration now);
  absl::Duration lease() const { return lease_; }
  absl::Duration beat_interval() const { return beat_; }

 private:
  const absl::Duration lease_;
  const absl::Duration beat_;
  std::map<std::string, Node> nodes_;
};

}  // namespace titan::core
