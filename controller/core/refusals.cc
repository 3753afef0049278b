// Workers that are not let in: why, and where an operator sees it.

#include "absl/strings/str_cat.h"
#include "common/base/text/id.h"
#include "common/service/rpc/error.h"
#include "controller/core/core.h"

namespace titan::core {
namespace {

constexpr absl::Duration kShownFor = absl::Minutes(1);   // After the last try.
constexpr absl::Duration kSaidAgain = absl::Minutes(1);  // A worker tries about once a second.
constexpr size_t kNamesKept = 1000;                      // Of nodes that nobody knows.

}  // namespace

absl::Status Core::check_cluster(const v1::Register& hello) const {
  if (hello.cluster().empty() || options_.cluster.empty() || hello.cluster() == options_.cluster) {
    return absl::OkStatus();
  }
  return rpc::error(
      absl::StatusCode::kFailedPrecondition, "WRONG_CLUSTER",
      absl::StrCat(
          "node ", hello.node(), " belongs to cluster ", hello.cluster(), " and this controller is of cluster ",
          options_.cluster,
          ": it is not let in, and its ranks go on. Give its titan-worker the right --controller; or, if it is "
          "to follow this one, restart it once with --adopt-cluster"),
      {{"node", hello.node()}, {"worker_cluster", hello.cluster()}, {"controller_cluster", options_.cluster}});
}

void Core::note_refusal(const v1::Register& hello, const absl::Status& why) {
  const absl::Duration now = now_.monotonic;
  const std::string reason = rpc::reason(why);
  measure(Measure::kNodeRefused, 1, reason);
  if (!text::is_id(hello.node())) return;  // Nothing that could be listed.
  forget_refusals();
  const bool is_new = refused_.count(hello.node()) == 0;
  if (is_new && refused_.size() >= kNamesKept) return;
  Refused& refused = refused_[hello.node()];
  const bool say = is_new || refused.reason != reason || now - refused.said_at >= kSaidAgain;
  refused = {hello.address(),
             hello.version(),
             hello.instance(),
             reason,
             std::string(why.message()),
             now,
             say ? now : refused.said_at};
  touch(hello.node());
  Node* node = nodes_.find(hello.node());
  if (!say) return;
  Change change;
  if (node == nullptr) {
    journal::Line line{journal::Level::kWarning, "NodeRefused", {}};
    line.add("node", hello.node()).add("message", absl::StrCat(reason, ": ", refused.message));
    change.then.lines.push_back(std::move(line));
    return commit(std::move(change));
  }
  add_node_event(change, *node, "NodeRefused", absl::StrCat(reason, ": ", refused.message), "warning");
  put_node(change, *node);
  commit(std::move(change));
}

void Core::forget_refusals() {
  for (auto it = refused_.begin(); it != refused_.end();) {
    if (now_.monotonic - it->second.at <= kShownFor) {
      ++it;
      continue;
    }
    touch(it->first);
    it = refused_.erase(it);
  }
}

}  // namespace titan::core
