#pragma once

// The nodes: what each offers, who speaks for it, and how long it has been silent. No locks: the owner has one.

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

// The scheduler keeps a place for each device, whatever a worker says of itself.
inline constexpr int kMostDevices = 4096;

enum class NodeState {
  kReconciling,  // Known, and not heard of since the controller started or the node came back.
  kReady,
  kLost,         // Lease gone, and nothing shows that its ranks still run.
  kUnreachable,  // Lease gone, but other nodes' beacons show its job advancing.
  kRefused,      // Only for people: nobody speaks for it, since its worker is not let in.
  kUnusable,     // Only for people: it speaks, and cannot prepare ranks.
};
absl::string_view name(NodeState state);

inline constexpr char kSessionReplaced[] = "SESSION_REPLACED";

struct Node {
  job::NodeRecord record;
  NodeState state = NodeState::kReconciling;
  SessionId session = 0;      // 0: nobody speaks for the node now.
  absl::Duration last_beat;   // Monotonic. The last one at which it heard the controller, too.
  bool deaf = false;          // It speaks, and the controller's words do not arrive.
  absl::Time last_beat_time;  // For people.
  bool diagnoses = false;     // As its session's Register says: it answers Diagnose.
  std::string boot_id;        // Likewise: when it was written.
  int64_t boot_nanoseconds = 0;
  bool suspect = false;                 // Three beats missed, or its stream broke: nothing new is placed there.
  int sessions_here = 0;                // Begun since this process started.
  SessionId foreign_told = 0;           // The session in which it was told that it speaks for others.
  std::deque<absl::Duration> sessions;  // When each of the last minute began.
  bool flapping = false;  // Its link was up and down many times within a minute, and has not been steady since.

  std::string unusable;        // Why its worker can prepare no rank, as it says; empty: it can.
  absl::Duration clock_ahead;  // Its clock compared with the controller's, where they differ by much; else zero.

  // What it says is heard, and what it is told arrives.
  bool speaks() const { return state == NodeState::kReady && session != 0 && !suspect; }
  bool can_take_ranks() const { return speaks() && unusable.empty(); }
};

class Nodes {
 public:
  Nodes(absl::Duration lease, absl::Duration beat) : lease_(lease), beat_(beat) {}

  // A node of the store, after a restart of the controller: its lease starts now.
  void restore(job::NodeRecord record, absl::Duration now);

  void remove(const std::string& name) { nodes_.erase(name); }

  // A new session. The record in the node has the next lease epoch and what the worker said; the session that it
  // replaces is to be closed. Errors: InvalidArgument for an id that cannot be a name; AlreadyExists (NODE_ID_IN_USE)
  // while another daemon holds the id; Aborted (SESSION_REPLACED) when the worker has begun a later session since: what
  // this one says of the node is no longer true.
  struct Opened {
    Node* node = nullptr;
    SessionId replaced = 0;
  };
  absl::StatusOr<Opened> open_session(const Registration& hello, SessionId session, absl::Duration now,
                                      absl::Time wall);
  // The node whose session this still is, or nullptr.
  Node* owner(const std::string& node, SessionId session);
  void close_session(const std::string& node, SessionId session);
  // `unanswered`: for so long it has heard nothing, though it speaks. What counts is when both could be heard.
  void beat(Node& node, absl::Duration now, absl::Time wall, absl::Duration unanswered = absl::ZeroDuration());

  Node* find(const std::string& name);
  const Node* find(const std::string& name) const;
  std::map<std::string, Node>& all() { return nodes_; }
  const std::map<std::string, Node>& all() const { return nodes_; }

  bool lease_over(const Node& node, absl::Duration now) const { return now - node.last_beat > lease_; }
  // The controller itself has heard nobody for so long: no node's fault.
  void excuse(absl::Duration pause, absl::Duration now);
  // Marks who began eight sessions within a minute; true when it was not marked before. A minute without a new session
  // takes the mark away.
  bool mark_flapping(Node& node, absl::Duration now);
  std::vector<Node*> end_flapping(absl::Duration now);
  // Marks who missed three beats. Those that were not marked before.
  std::vector<const Node*> mark_suspects(absl::Duration now);
  absl::Duration lease() const { return lease_; }
  absl::Duration beat_interval() const { return beat_; }

 private:
  const absl::Duration lease_;
  const absl::Duration beat_;
  std::map<std::string, Node> nodes_;
};

}  // namespace titan::core
