// Workers that are not let in: why, and where an operator sees it.

#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr absl::Duration kShownFor = absl::Minutes(1);   // After the last try.
constexpr absl::Duration kSaidAgain = absl::Minutes(1);  // A worker tries about once a second.
constexpr size_t kNamesKept = 1000;                      // Of nodes that nobody knows.

}  // namespace

absl::Status check_cluster(const Options& options, const v1::Register& hello) {
  if (hello.cluster().empty() || options.cluster.empty() || hello.cluster() == options.cluster) {
    return absl::OkStatus();
  }
  return rpc::error(
      absl::StatusCode::kFailedPrecondition, "WRONG_CLUSTER",
      absl::StrCat(
          "node ", hello.node(), " belongs to cluster ", hello.cluster(), " and this controller is of cluster ",
          options.cluster,
          ": it is not let in, and its ranks go on. Give its titan-worker the right --controller; or, if it is "
          "to follow this one, restart it once with --adopt-cluster"),
      {{"node", hello.node()}, {"worker_cluster", hello.cluster()}, {"controller_cluster", options.cluster}});
}

void note_refusal(Step& step, const v1::Register& hello, const absl::Status& why) {
  const absl::Duration now = step.now.monotonic;
  const std::string reason = rpc::reason(why);
  step.measure(Measure::kNodeRefused, 1, reason);
  if (!valid_id(hello.node())) return;  // Nothing that could be listed.
  forget_refusals(step);
  const bool is_new = step.state.refused.count(hello.node()) == 0;
  if (is_new && step.state.refused.size() >= kNamesKept) return;
  Refused& refused = step.state.refused[hello.node()];
  const bool say = is_new || refused.reason != reason || now - refused.said_at >= kSaidAgain;
  refused = {hello.address(),
             hello.version(),
             hello.instance(),
             reason,
             std::string(why.message()),
             now,
             say ? now : refused.said_at};
  step.touch(hello.node());
  Node* node = step.state.nodes.find(hello.node());
  if (!say) return;
  Change change;
  if (node == nullptr) {
    journal::Line line{journal::Level::kWarning, "NodeRefused", {}};
    line.add("node", hello.node()).add("message", absl::StrCat(reason, ": ", refused.message));
    change.then.lines.push_back(std::move(line));
    return step.commit(std::move(change));
  }
  add_node_event(step, change, *node, "NodeRefused", absl::StrCat(reason, ": ", refused.message), "warning");
  put_node(step, change, *node);
  step.commit(std::move(change));
}

void forget_refusals(Step& step) {
  for (auto it = step.state.refused.begin(); it != step.state.refused.end();) {
    if (step.now.monotonic - it->second.at <= kShownFor) {
      ++it;
      continue;
    }
    step.touch(it->first);
    it = step.state.refused.erase(it);
  }
}

}  // namespace titan::core
