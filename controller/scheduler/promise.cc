// What the first waiting job is promised: nodes that nobody else fills up.
//
// EASY backfill, by nodes. The first job that must wait although the cluster could hold it is promised enough nodes to
// run on: those whose jobs end first. Its shadow time is when the last of those jobs ends, if all have limits. Any
// other job may use the other nodes; a promised node only if its own limit ends it by the shadow time. The job starts
// as soon as it fits anywhere.
//
// Why it cannot starve: the promise stands while its nodes can be used, and the shadow time never moves back. Without a
// shadow time, nothing starts on promised nodes, so they are free once the jobs that are there have ended. With one,
// what starts there ends by then; after it nothing starts there, so even jobs that outstay their limits only delay it
// until they end. An exchange of nodes (improve_promise) brings a ready node for one that is not.

#include <algorithm>

#include "controller/scheduler/pool.h"

namespace titan::scheduler {
namespace {

absl::Time last_end(const std::vector<NodeState*>& nodes) {
  absl::Time end = absl::InfinitePast();
  for (const NodeState* node : nodes) end = std::max(end, node->standing.drained);
  return end;
}

void sort_by_key(std::vector<NodeState*>& nodes) {
  std::sort(nodes.begin(), nodes.end(), [](const NodeState* a, const NodeState* b) { return a->key < b->key; });
}

}  // namespace

void Pool::set_promise(Waiting& job, std::vector<NodeState*> nodes, absl::Time shadow) {
  drop_promise();
  sort_by_key(nodes);
  promise_ = {&job, std::move(nodes), shadow};
  for (NodeState* node : promise_.nodes) nodes_.target(*node, true);
  changed();
}

void Pool::drop_promise() {
  if (promise_.job == nullptr) return;
  for (NodeState* node : promise_.nodes) nodes_.target(*node, false);
  promise_ = {};
  changed();
}

void Pool::promise_to(Waiting& job, const Shunned& shunned) {
  // Nodes that it was ready to use may be avoided now that there are others.
  const bool still_wanted =
      std::none_of(shunned.hidden.begin(), shunned.hidden.end(), [](const NodeState* node) { return node->targeted; });
  if (promise_.job == &job && still_wanted) return improve_promise(shunned);
  drop_promise();  // Or its owner is behind this job now.
  std::vector<NodeState*> nodes = nodes_.soonest(job.request, {shunned.hidden.begin(), shunned.hidden.end()});
  const absl::Time shadow = last_end(nodes);
  set_promise(job, std::move(nodes), shadow);
}

// Nodes elsewhere that could take their share of the job now, for promised ones that cannot.
void Pool::improve_promise(const Shunned& shunned) {
  const Request& request = promise_.job->request;
  const NodeIndex& open = nodes_.index(false);
  if (open.counts().at_least(request.least()) == 0) return;
  std::vector<NodeState*> unready;
  for (NodeState* node : promise_.nodes) {
    const NodeState::Standing& now = node->standing;
    if (request.share(now.unclaimed) < request.share(now.devices)) unready.push_back(node);
  }
  std::sort(unready.begin(), unready.end(), [](const NodeState* a, const NodeState* b) {
    return a->standing.drained != b->standing.drained ? a->standing.drained > b->standing.drained : a->key < b->key;
  });
  std::vector<NodeState*> nodes = promise_.nodes;
  bool exchanged = false;
  for (NodeState* node : unready) {
    NodeState* ready = open.tightest(request.share(node->standing.devices), node);
    if (ready == nullptr || std::count(shunned.hidden.begin(), shunned.hidden.end(), ready) > 0) continue;
    std::replace(nodes.begin(), nodes.end(), node, ready);
    nodes_.target(*node, false);
    nodes_.target(*ready, true);
    exchanged = true;
  }
  if (!exchanged) return;
  sort_by_key(nodes);
  promise_.nodes = std::move(nodes);
  promise_.shadow = std::min(promise_.shadow, last_end(promise_.nodes));
  changed();
}

Reservation Pool::reservation() const {
  Reservation reservation{promise_.job->job.uid, {}, promise_.shadow};
  for (const NodeState* node : promise_.nodes) reservation.nodes.push_back(node->node.name);
  return reservation;
}

void Pool::restore(Waiting& job, const Reservation& reservation) {
  std::vector<NodeState*> nodes;
  for (const std::string& name : reservation.nodes) {
    NodeState* node = ledger_.find(name);
    if (node == nullptr || !node->standing.usable || node->node.device != job.job.device) return;
    nodes.push_back(node);
  }
  set_promise(job, std::move(nodes), reservation.shadow);
}

}  // namespace titan::scheduler
