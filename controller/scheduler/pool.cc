#include "controller/scheduler/pool.h"

#include <utility>

namespace titan::scheduler {

void Pool::attach(NodeState& node) {
  node.known = true;
  nodes_.attach(node);
  nodes_.refresh(node);
  useless_stale_ = true;
  changed();
}

void Pool::detach(NodeState& node) {
  useless_stale_ = true;
  if (node.targeted) drop_promise();
  nodes_.detach(node);
  changed();
}

void Pool::refresh(NodeState& node) {
  ++facts_;
  if (node.targeted) dirty_ = true;  // An exchange may help now.
  if (nodes_.refresh(node)) changed();
}

void Pool::add(Waiting& job) {
  if (!job.held.empty()) {
    holders_.insert(&job);
    useless_stale_ = true;
    for (NodeState* node : job.held) {
      node->holds.push_back({&job, &job.job.reserved.at(node->node.name)});
      nodes_.refresh(*node);
    }
  }
  if (queue_.add(job)) dirty_ = true;
  never_told_.insert(&job);
  ++facts_;
}

void Pool::remove(Waiting& job) {
  if (promise_.job == &job) drop_promise();
  queue_.remove(job);
  never_told_.erase(&job);
  if (job.held.empty()) return;
  holders_.erase(&job);
  useless_.erase(&job);
  for (NodeState* node : job.held) {
    std::erase_if(node->holds, [&](const Hold& hold) { return hold.job == &job; });
    nodes_.refresh(*node);
  }
  changed();
}

// The first of each shape, in the queue's order. What did not fit is not asked again before something was freed. The
// first job that the cluster could hold and that has to wait gets the promise; what comes after it sees what is left.
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
        const Shunned shunned = shun(job);
        waits = shunned.fits_idle;
        if (waits) promise_to(job, shunned);
      }
      shape = queue_.after(here);
    }
  }
  tell_reasons(limits.reasons, totals, outcomes);
}

}  // namespace titan::scheduler
