// Workers that are refused: why, and where an operator sees it.

#include "controller/core/refusals.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/id.h"
#include "common/service/rpc/error.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr absl::Duration kShownFor = absl::Minutes(1);        // After the last refusal.
constexpr absl::Duration kReportInterval = absl::Minutes(1);  // A worker tries about once a second.
constexpr size_t kNamesKept = 1000;                           // Limit for all refused names.

}  // namespace

RefusedWorkers::NoteResult RefusedWorkers::note(const std::string& node, RefusedWorker refused) {
  const auto known = by_node_.find(node);
  const bool is_new = known == by_node_.end();
  if (is_new && by_node_.size() >= kNamesKept) return NoteResult::kTableFull;
  const absl::Duration now = refused.at;
  const bool say =
      is_new || known->second.refused.reason != refused.reason || now - known->second.said_at >= kReportInterval;
  const absl::Duration said_at = say ? now : known->second.said_at;
  by_node_[node] = {std::move(refused), said_at};
  return say ? NoteResult::kReport : NoteResult::kAlreadyReported;
}

void RefusedWorkers::forget(const std::string& node) { by_node_.erase(node); }

std::vector<std::string> RefusedWorkers::take_old(absl::Duration now) {
  std::vector<std::string> old;
  for (auto it = by_node_.begin(); it != by_node_.end();) {
    const bool is_old = now - it->second.refused.at > kShownFor;
    if (is_old) old.push_back(it->first);
    it = is_old ? by_node_.erase(it) : std::next(it);
  }
  return old;
}

const RefusedWorker* RefusedWorkers::find(const std::string& node) const {
  const auto found = by_node_.find(node);
  return found == by_node_.end() ? nullptr : &found->second.refused;
}

std::vector<std::string> RefusedWorkers::nodes() const {
  std::vector<std::string> names;
  for (const auto& [node, entry] : by_node_) names.push_back(node);
  return names;
}

absl::Status check_cluster(const CoreOptions& options, const Registration& hello) {
  if (hello.cluster.empty() || options.cluster.empty() || hello.cluster == options.cluster) {
    return absl::OkStatus();
  }
  return rpc::error(absl::StatusCode::kFailedPrecondition, "WRONG_CLUSTER",
                    absl::StrCat("node ", hello.node, " belongs to cluster ", hello.cluster,
                                 ", and this controller to cluster ", options.cluster,
                                 ": registration refused, its ranks keep running. Start its titan-worker with the "
                                 "right --controller; or, if it is "
                                 "to join this cluster, restart it once with --adopt-cluster"),
                    {{"node", hello.node}, {"worker_cluster", hello.cluster}, {"controller_cluster", options.cluster}});
}

void note_refusal(Step& step, const Registration& hello, const absl::Status& why) {
  const std::string reason = rpc::reason(why);
  step.measure(MetricSample::kNodeRefused, 1, reason);
  if (!text::is_id(hello.node)) return;  // Without a valid name there is nothing to list.
  forget_refusals(step);
  const RefusedWorker refused{hello.address,     hello.version, hello.instance, reason, std::string(why.message()),
                              step.now.monotonic};
  const RefusedWorkers::NoteResult noted = step.state.refused_workers.note(hello.node, refused);
  if (noted == RefusedWorkers::NoteResult::kTableFull) return;
  step.touch(hello.node);
  Node* node = step.state.nodes.find(hello.node);
  if (noted == RefusedWorkers::NoteResult::kAlreadyReported) return;
  Change change;
  if (node == nullptr) {
    journal::Line line{journal::Level::kWarning, "NodeRefused", {}};
    line.add("node", hello.node).add("message", absl::StrCat(reason, ": ", refused.message));
    change.then.lines.push_back(std::move(line));
    return step.commit(std::move(change));
  }
  add_node_event(step, change, *node, "NodeRefused", absl::StrCat(reason, ": ", refused.message), "warning");
  put_node(step, change, *node);
  step.commit(std::move(change));
}

void forget_refusals(Step& step) {
  for (const std::string& node : step.state.refused_workers.take_old(step.now.monotonic)) step.touch(node);
}

}  // namespace titan::core
