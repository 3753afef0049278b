#include "controller/core/node_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/id.h"
#include "common/service/rpc/error.h"

namespace titan::core {
namespace {

constexpr absl::Duration kFlapWindow = absl::Minutes(1);
constexpr size_t kFlaps = 8;

}  // namespace

absl::string_view name(NodeState state) {
  switch (state) {
    case NodeState::kReconciling:
      return "RECONCILING";
    case NodeState::kReady:
      return "READY";
    case NodeState::kLost:
      return "LOST";
    case NodeState::kUnreachable:
      return "UNREACHABLE";
    case NodeState::kRefused:
      return "REFUSED";
    case NodeState::kUnusable:
      return "UNUSABLE";
  }
  return "UNKNOWN";
}

void NodeTable::restore(job::NodeRecord record, absl::Duration now) {
  Node& node = nodes_[record.name];
  node.record = std::move(record);
  node.last_beat = now;
}

absl::StatusOr<NodeTable::Opened> NodeTable::open_session(const Registration& hello, SessionId session,
                                                          absl::Duration now, absl::Time wall) {
  if (!text::is_id(hello.node)) {
    return rpc::error(absl::StatusCode::kInvalidArgument, "BAD_NODE_ID",
                      absl::StrCat("node id '", hello.node, "' must match ", text::kIdRule));
  }
  if (hello.devices < 0 || hello.devices > kMaxDevices) {
    return rpc::error(absl::StatusCode::kInvalidArgument, "BAD_DEVICES",
                      absl::StrCat("node ", hello.node, " says that it has ", hello.devices, " devices, expected 0 to ",
                                   kMaxDevices, ": start titan-worker with --devices"));
  }
  Node& node = nodes_[hello.node];
  job::NodeRecord& record = node.record;
  // This holds also while the holder's stream is broken or the controller has just started: a second daemon that keeps
  // trying must not take the id, and with it the first one's attempts, at such a moment.
  const bool held = !record.instance.empty() && !lease_over(node, now);
  if (held && record.instance != hello.instance) {
    return rpc::error(absl::StatusCode::kAlreadyExists, "NODE_ID_IN_USE",
                      absl::StrCat("another titan-worker with another state folder holds node id '", hello.node,
                                   "'; give this one its own --node, or wait until that node's lease is over"));
  }
  const bool is_late =
      !hello.boot_id.empty() && hello.boot_id == node.boot_id && hello.boot_nanoseconds < node.boot_nanoseconds;
  if (is_late) {
    return rpc::error(absl::StatusCode::kAborted, kSessionReplaced,
                      absl::StrCat("node ", hello.node, " has begun a later session since"));
  }
  record.name = hello.node;
  record.instance = hello.instance;
  record.address = hello.address;
  record.version = hello.version;
  record.device = hello.device;
  record.devices = hello.devices;
  record.cpu_cores = hello.cpu_cores;
  record.memory_bytes = hello.memory_bytes;
  record.device_model = hello.device_model;
  record.device_memory_bytes = hello.device_memory_bytes;
  record.labels = hello.labels;
  node.diagnoses = hello.diagnoses;
  node.boot_id = hello.boot_id;
  node.boot_nanoseconds = hello.boot_nanoseconds;
  ++record.lease_epoch;
  ++node.sessions_here;
  const SessionId replaced = std::exchange(node.session, session);
  node.state = NodeState::kReconciling;
  beat(node, now, wall);
  return Opened{&node, replaced};
}

Node* NodeTable::owner(const std::string& name, SessionId session) {
  Node* node = find(name);
  return node != nullptr && session != 0 && node->session == session ? node : nullptr;
}

void NodeTable::close_session(const std::string& name, SessionId session) {
  Node* node = owner(name, session);
  if (node == nullptr) return;
  node->session = 0;
  node->suspect = true;
}

void NodeTable::beat(Node& node, absl::Duration now, absl::Time wall, absl::Duration unanswered) {
  node.last_beat = now - unanswered;
  node.last_beat_time = wall;
  node.deaf = unanswered > absl::ZeroDuration();
  if (!node.deaf) node.suspect = false;
}

Node* NodeTable::find(const std::string& name) {
  const auto it = nodes_.find(name);
  return it == nodes_.end() ? nullptr : &it->second;
}

const Node* NodeTable::find(const std::string& name) const {
  const auto it = nodes_.find(name);
  return it == nodes_.end() ? nullptr : &it->second;
}

void NodeTable::excuse(absl::Duration pause, absl::Duration now) {
  for (auto& [name, node] : nodes_) node.last_beat = std::min(node.last_beat + pause, now);
}

bool NodeTable::mark_flapping(Node& node, absl::Duration now) {
  node.sessions.push_back(now);
  while (now - node.sessions.front() > kFlapWindow) node.sessions.pop_front();
  return node.sessions.size() >= kFlaps && !std::exchange(node.flapping, true);
}

std::vector<Node*> NodeTable::end_flapping(absl::Duration now) {
  std::vector<Node*> steady;
  for (auto& [name, node] : nodes_) {
    if (!node.flapping || now - node.sessions.back() <= kFlapWindow) continue;
    node.flapping = false;
    steady.push_back(&node);
  }
  return steady;
}

std::vector<const Node*> NodeTable::mark_suspects(absl::Duration now) {
  std::vector<const Node*> marked;
  for (auto& [name, node] : nodes_) {
    if (now - node.last_beat > 3 * beat_ && !std::exchange(node.suspect, true)) marked.push_back(&node);
  }
  return marked;
}

}  // namespace titan::core
