#include "controller/scheduler/pool.h"

#include <algorithm>
#include <utility>

namespace titan::scheduler {

void Pool::attach(NodeInfo& node) {
  node.known = true;
  nodes_.attach(node);
  nodes_.refresh(node);
  useless_stale_ = true;
  changed();
}

void Pool::detach(NodeInfo& node) {
  useless_stale_ = true;
  if (node.targeted) drop_promise();
  nodes_.detach(node);
  changed();
}

void Pool::refresh(NodeInfo& node) {
  ++facts_;
  if (node.targeted) dirty_ = true;  // improve_promise() may help now.
  if (nodes_.refresh(node)) changed();
}

void Pool::add(Waiting& job) {
  if (!job.held.empty()) {
    holders_.insert(&job);
    useless_stale_ = true;
    for (NodeInfo* node : job.held) {
      node->holds.push_back({&job, &job.job.reserved.at(node->node.name)});
      nodes_.refresh(*node);
    }
  }
  if (queue_.add(job)) dirty_ = true;
  never_reported_.insert(&job);
  ++facts_;
}

void Pool::remove(Waiting& job) {
  if (promise_.job == &job) drop_promise();
  queue_.remove(job);
  never_reported_.erase(&job);
  if (job.held.empty()) return;
  holders_.erase(&job);
  useless_.erase(&job);
  for (NodeInfo* node : job.held) {
    std::erase_if(node->holds, [&](const Hold& hold) { return hold.job == &job; });
    nodes_.refresh(*node);
  }
  changed();
}

// Looks at the first job of each shape, in queue order. A job that did not fit is not tried again before something was
// freed. The first job that has to wait although the cluster could hold it gets the promise. Later jobs see what is
// left.
void Pool::cycle(absl::Time now, const Limits& limits, const NodeTotals& totals, std::vector<Outcome>& outcomes) {
  if (dirty_) {
    dirty_ = false;
    cut_.reset();
    find_useless();
    bool waits = false;
    int placed = 0;
    for (Shape* shape = queue_.first(); shape != nullptr;) {
      Waiting& job = shape->front();
      const Place here = job.place;
      if (shape->blocked_at != version_) {
        if (placed == limits.placements) {
          dirty_ = true;
          cut_ = here;
          break;
        }
        if (std::optional<std::vector<Run>> runs = place(job, now)) {
          outcomes.push_back({job.job.uid, *std::move(runs), "", ""});
          ++placed;
          shape = queue_.after(here);
          continue;
        }
        shape->blocked_at = version_;
      }
      if (!waits) {
        const ExcludedNodes excluded = excluded_nodes(job);
        waits = excluded.fits_idle;
        if (waits) promise_to(job, excluded);
      }
      shape = queue_.after(here);
    }
  }
  report_reasons(limits.reasons, totals, outcomes);
}

// EASY backfill, by nodes. The first job that must wait although the cluster could hold it is promised enough nodes to
// run on: those whose jobs end first. Its shadow time is when the last of those jobs ends, if all have limits. Any
// other job may use the other nodes. It may use a promised node only if its own limit ends it by the shadow time. The
// promised job starts as soon as it fits anywhere.
//
// It cannot starve: the promise stands while its nodes can be used, and the shadow time never moves back. Without a
// shadow time nothing starts on promised nodes, so they are free once the jobs that run there have ended. With one,
// jobs that start there end by then, and afterwards nothing starts there. Even jobs that outstay their limits only
// delay it until they end. An exchange of nodes (improve_promise) brings a ready node for one that is not.
void Pool::promise_to(Waiting& job, const ExcludedNodes& excluded) {
  // Nodes that it accepted earlier may be avoided now that there are others.
  const bool still_wanted =
      std::none_of(excluded.hidden.begin(), excluded.hidden.end(), [](const NodeInfo* node) { return node->targeted; });
  if (promise_.job == &job && still_wanted) return improve_promise(excluded);
  drop_promise();  // The promise may belong to a job that is now later in the queue.
  set_promise(job, nodes_.soonest(job.request, {excluded.hidden.begin(), excluded.hidden.end()}));
}

// Exchanges promised nodes that cannot take their share of the job now for other nodes that can. Each exchange brings
// ranks that could start, so there are no more exchanges than ranks.
void Pool::improve_promise(const ExcludedNodes& excluded) {
  const GangRequest& request = promise_.job->request;
  const NodeIndex& open = nodes_.index(false);
  bool exchanged = false;
  // Otherwise one of them could be the tightest and hide others.
  for (NodeInfo* node : excluded.hidden) nodes_.hide(*node, true);
  while (open.counts().at_least(request.least()) > 0) {
    NodeInfo* slow = nodes_.slowest(request);
    if (slow == nullptr) break;
    NodeInfo* ready = open.tightest(request.share(slow->standing.devices), slow);
    if (ready == nullptr) break;
    promise_.nodes.erase(slow);
    promise_.nodes.insert(ready);
    nodes_.target(*slow, false);
    nodes_.target(*ready, true);
    exchanged = true;
  }
  for (NodeInfo* node : excluded.hidden) nodes_.hide(*node, false);
  // It also changes when the end of a job that runs there becomes known, or is earlier than expected.
  const absl::Time shadow = std::min(promise_.shadow, nodes_.targets_drained());
  if (!exchanged && shadow == promise_.shadow) return;
  promise_.shadow = shadow;
  changed();
}

void Pool::set_promise(Waiting& job, NodeSet nodes) {
  drop_promise();
  promise_.job = &job;
  promise_.nodes = std::move(nodes);
  for (NodeInfo* node : promise_.nodes) nodes_.target(*node, true);
  promise_.shadow = nodes_.targets_drained();
  changed();
}

void Pool::drop_promise() {
  if (promise_.job == nullptr) return;
  for (NodeInfo* node : promise_.nodes) nodes_.target(*node, false);
  promise_ = {};
  changed();
}

Reservation Pool::reservation() const {
  Reservation reservation{promise_.job->job.uid, {}, promise_.shadow};
  for (const NodeInfo* node : promise_.nodes) reservation.nodes.push_back(node->node.name);
  return reservation;
}

void Pool::restore(Waiting& job, const Reservation& reservation) {
  NodeSet nodes;
  for (const std::string& name : reservation.nodes) {
    NodeInfo* node = ledger_.find(name);
    if (node == nullptr || !node->standing.usable || node->node.device != job.job.device) return;
    nodes.insert(node);
  }
  set_promise(job, std::move(nodes));
  promise_.shadow = reservation.shadow;
}

}  // namespace titan::scheduler
