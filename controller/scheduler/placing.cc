// Chooses the nodes and devices of a job.

#include <algorithm>
#include <utility>

#include "controller/scheduler/pool.h"

namespace titan::scheduler {

Pool::ExcludedNodes Pool::excluded_nodes(const Waiting& job) const {
  const GangRequest& request = job.request;
  const auto counts = [&](const NodeInfo* node) {
    return node->standing.usable && node->node.device == job.job.device;
  };
  ExcludedNodes excluded;
  int64_t capacity = nodes_.usable().capacity(request);
  for (NodeInfo* node : job.refused) {
    if (!counts(node)) continue;
    capacity -= request.share(node->standing.devices);
    excluded.hidden.push_back(node);
  }
  int64_t others = capacity;
  for (NodeInfo* node : job.avoided) {
    if (!counts(node)) continue;
    others -= request.share(node->standing.devices);
    excluded.last.push_back(node);
  }
  if (others >= request.ranks) {
    excluded.hidden.insert(excluded.hidden.end(), excluded.last.begin(), excluded.last.end());
    excluded.last.clear();
  }
  excluded.fits_idle = request.divides() && capacity >= request.ranks;
  return excluded;
}

// True for the promised job, for jobs before it, and for jobs that end before it can start.
bool Pool::may_use_promised(const Waiting& job, absl::Time now) const {
  if (promise_.job == nullptr) return false;
  if (promise_.job == &job || job.place < promise_.job->place) return true;
  return promise_.shadow != absl::InfiniteFuture() && now + job.job.time_limit <= promise_.shadow;
}

// Returns an upper bound on the ranks that the job can get. It is cheap, and nearly always exact.
int64_t Pool::max_available(const Waiting& job, const ExcludedNodes& excluded, bool promised) const {
  int64_t capacity = nodes_.unclaimed(false).capacity(job.request);
  if (promised) capacity += nodes_.unclaimed(true).capacity(job.request);
  for (const NodeInfo* node : excluded.hidden) {
    if (promised || !node->targeted) capacity -= job.request.share(node->standing.unclaimed);
  }
  return capacity;
}

std::optional<std::vector<Run>> Pool::place(Waiting& job, absl::Time now) {
  const ExcludedNodes excluded = excluded_nodes(job);
  const bool promised = may_use_promised(job, now);
  if (!excluded.fits_idle || max_available(job, excluded, promised) < job.request.ranks) return std::nullopt;
  for (NodeInfo* node : excluded.hidden) nodes_.hide(*node, true);
  lift(job, true);
  std::vector<Waiting*> lifted = {&job};
  Shares shares;
  NodeIndex* index = make_space(job, promised, lifted);
  if (index != nullptr) shares = choose(*index, job, excluded);
  std::optional<std::vector<Run>> runs;
  if (index != nullptr) runs = settle(job, std::move(shares), now);
  for (NodeInfo* node : excluded.hidden) nodes_.hide(*node, false);
  for (Waiting* other : lifted) lift(*other, false);
  nodes_.merge(promise_.nodes, false);
  if (!runs) return std::nullopt;

  const bool spoils =
      promise_.job != nullptr && job.place < promise_.job->place &&
      std::any_of(runs->begin(), runs->end(), [&](const Run& run) { return ledger_.find(run.node)->targeted; });
  if (spoils) drop_promise();
  remove(job);
  return runs;
}

// A lost node may return by itself. A cordoned one returns only when its operator says so.
bool Pool::could_ever_run(const Waiting& job) const {
  int64_t capacity = nodes_.in_service().capacity(job.request);
  for (const NodeInfo* node : job.refused) {
    const bool counts = node->known && !node->node.cordoned && node->node.device == job.job.device;
    if (counts) capacity -= job.request.share(node->node.devices);
  }
  return job.request.divides() && capacity >= job.request.ranks;
}

void Pool::find_useless() {
  if (!std::exchange(useless_stale_, false)) return;
  useless_.clear();
  for (Waiting* job : holders_) {
    if (!could_ever_run(*job)) useless_.insert(job);
  }
}

// Returns an index in which the job fits: open nodes, promised nodes if it may use them, or both. If it does not fit,
// lifts the holds of jobs that cannot run anyway, and finally those of later jobs, the last job first. Null: it does
// not fit.
NodeIndex* Pool::make_space(const Waiting& job, bool promised, std::vector<Waiting*>& lifted) {
  const auto capacity = [&](bool targeted) { return nodes_.index(targeted).counts().capacity(job.request); };
  const bool owner = promise_.job == &job;  // It is placed only once, so a slower choice among all nodes is fine.
  if (!owner && capacity(false) >= job.request.ranks) return &nodes_.index(false);
  if (!owner && promised && capacity(true) >= job.request.ranks) return &nodes_.index(true);
  const auto fits = [&] { return capacity(false) + (promised ? capacity(true) : 0) >= job.request.ranks; };
  for (auto victim = useless_.begin(); victim != useless_.end() && !fits(); ++victim) {
    if (*victim == &job) continue;
    lift(**victim, true);
    lifted.push_back(*victim);
  }
  for (auto victim = holders_.rbegin(); !fits(); ++victim) {
    if (victim == holders_.rend() || (*victim)->place <= job.place) return nullptr;
    if ((*victim)->lifted) continue;
    lift(**victim, true);
    lifted.push_back(*victim);
  }
  if (promised) nodes_.merge(promise_.nodes, true);
  return &nodes_.index(false);
}

// Chooses the fewest nodes, first those that the job came from, in the fewest domains, with the tightest fit. The job
// must fit into the index.
Pool::Shares Pool::choose(NodeIndex& index, const Waiting& job, const ExcludedNodes& excluded) {
  Shares shares;
  int left = job.request.ranks;
  for (NodeInfo* node : excluded.last) nodes_.hide(*node, true);
  choose_own(index, job, left, shares);
  choose_more(index, job.request, left, shares);
  for (NodeInfo* node : excluded.last) nodes_.hide(*node, false);
  choose_more(index, job.request, left, shares);
  return shares;
}

void Pool::take(NodeInfo& node, int ranks, int& left, Shares& shares) {
  nodes_.hide(node, true);
  shares.emplace_back(&node, ranks);
  left -= ranks;
}

void Pool::choose_own(NodeIndex& index, const Waiting& job, int& left, Shares& shares) {
  std::vector<NodeInfo*> own;
  for (NodeInfo* node : job.held) {
    if (node->standing.index == &index && job.request.share(node->standing.free) > 0) own.push_back(node);
  }
  if (own.empty()) return;
  std::sort(own.begin(), own.end(), [](const NodeInfo* a, const NodeInfo* b) {
    return a->standing.free != b->standing.free ? a->standing.free > b->standing.free : a->key < b->key;
  });
  if (job.request.per_node == 0) {
    // If one of these nodes can take everything, takes the tightest such node. The largest are at the front.
    const auto too_small = std::find_if(
        own.begin(), own.end(), [&](const NodeInfo* node) { return job.request.share(node->standing.free) < left; });
    if (too_small != own.begin()) return take(**(too_small - 1), left, left, shares);
    if (index.counts().at_least(left) > 0) return;
  }
  for (NodeInfo* node : own) {
    if (left == 0) return;
    take(*node, std::min(left, job.request.share(node->standing.free)), left, shares);
  }
}

void Pool::choose_more(NodeIndex& index, const GangRequest& request, int& left, Shares& shares) {
  while (left > 0) {
    if ((request.per_node == 0 || left == request.per_node) && index.counts().at_least(left) > 0) {
      const NodeInfo* near = shares.empty() ? nullptr : shares.back().first;
      take(*index.tightest(left, near), left, left, shares);
      continue;
    }
    const int share = request.per_node > 0 ? request.per_node : request.share(index.counts().widest());
    if (share == 0) return;
    const int whole = std::min(left / share, index.counts().at_least(share));
    if (whole == 0) return;
    const std::vector<NodeInfo*> nodes = index.neighbours(share, whole, left - whole * share);
    for (NodeInfo* node : nodes) take(*node, share, left, shares);
  }
}

// Claims the devices and numbers ranks in the order of nodes: ranks that are neighbours run near each other.
std::vector<Run> Pool::settle(Waiting& job, Shares shares, absl::Time now) {
  std::sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first->key < b.first->key; });
  std::vector<Run> runs;
  runs.reserve(shares.size());
  int next = 0;
  for (const auto& [node, ranks] : shares) {
    Run run{node->node.name, next, choose_devices(*node, job, ranks)};
    next += ranks;
    ledger_.claim(job.job.uid, run.node, run.devices, now + job.job.time_limit);
    nodes_.hide(*node, false);
    if (node->targeted) dirty_ = true;  // improve_promise() may help now.
    runs.push_back(std::move(run));
  }
  return runs;
}

void Pool::lift(Waiting& job, bool lifted) {
  job.lifted = lifted;
  for (NodeInfo* node : job.held) nodes_.refresh(*node);
}

}  // namespace titan::scheduler
