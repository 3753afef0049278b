#include "controller/scheduler/scheduler.h"

#include <utility>

#include "controller/scheduler/node_index.h"

namespace titan::scheduler {

Pool& Scheduler::pool(const std::string& device) {
  std::unique_ptr<Pool>& pool = pools_[device];
  if (pool == nullptr) pool = std::make_unique<Pool>(device, ledger_);
  return *pool;
}

void Scheduler::count(const NodeInfo& node, int sign) {
  totals_.known += sign;
  if (node.node.ready) totals_.ready += sign;
  if (node.node.ready && node.node.cordoned) totals_.ready_cordoned += sign;
  if (!node.node.ready && node.node.unusable) totals_.unusable += sign;
  for (const auto& [device, pool] : pools_) pool->facts_changed();
}

void Scheduler::set_node(NodeProperties node) {
  NodeInfo& state = ledger_.at(node.name);
  if (state.known) {
    if (state.node == node) return;
    count(state, -1);
    pool(state.node.device).detach(state);
  }
  state.node = std::move(node);
  state.key = node_key(state.node.domain, state.node.name);
  state.domain_key = natural_key(state.node.domain);
  pool(state.node.device).attach(state);
  count(state, 1);
}

void Scheduler::remove_node(const std::string& name) {
  NodeInfo* state = ledger_.find(name);
  if (state == nullptr || !state->known) return;
  count(*state, -1);
  pool(state->node.device).detach(*state);
  ledger_.forget_if_unused(*state);
}

Place Scheduler::place_of(const PendingJob& job) const {
  const int64_t urgency = -int64_t{job.priority};
  const int64_t healthy = job.recovering ? 0 : 1;
  return order_ == Order::kPriorityFirst ? Place{urgency, healthy, job.order, job.uid}
                                         : Place{healthy, urgency, job.order, job.uid};
}

void Scheduler::add_job(PendingJob job) {
  remove_job(job.uid);
  auto waiting = std::make_unique<Waiting>();
  waiting->place = place_of(job);
  waiting->request = GangRequest::of(job);
  const auto mention = [&](const std::string& name) {
    NodeInfo& node = ledger_.at(name);
    ++node.mentions;
    return &node;
  };
  for (const auto& [node, devices] : job.reserved) waiting->held.push_back(mention(node));
  for (const std::string& node : job.refused) waiting->refused.push_back(mention(node));
  for (const std::string& node : job.avoided) {
    if (!job.refused.contains(node)) waiting->avoided.push_back(mention(node));
  }
  waiting->job = std::move(job);
  Waiting& added = *(jobs_[waiting->job.uid] = std::move(waiting));
  pool(added.job.device).add(added);
}

void Scheduler::remove_job(const std::string& uid) {
  const auto it = jobs_.find(uid);
  if (it == jobs_.end()) return;
  const std::unique_ptr<Waiting> job = std::move(it->second);
  jobs_.erase(it);
  if (job->shape != nullptr) pool(job->job.device).remove(*job);
  for (const auto* nodes : {&job->held, &job->avoided, &job->refused}) {
    for (NodeInfo* node : *nodes) {
      --node->mentions;
      ledger_.forget_if_unused(*node);
    }
  }
}

void Scheduler::touched(const std::vector<NodeInfo*>& nodes) {
  for (NodeInfo* node : nodes) {
    if (node->known) {
      pool(node->node.device).refresh(*node);
    } else {
      ledger_.forget_if_unused(*node);
    }
  }
}

void Scheduler::occupy(const std::string& owner, const std::string& node, const std::vector<int>& devices,
                       absl::Time ends) {
  touched({&ledger_.claim(owner, node, devices, ends)});
}

void Scheduler::release(const std::string& owner) { touched(ledger_.release(owner)); }

void Scheduler::release(const std::string& owner, const std::string& node) { touched(ledger_.release(owner, node)); }

std::vector<Outcome> Scheduler::cycle(absl::Time now, const Limits& limits) {
  std::vector<Outcome> outcomes;
  for (const auto& [device, pool] : pools_) pool->cycle(now, limits, totals_, outcomes);
  for (const Outcome& outcome : outcomes) {
    if (!outcome.runs.empty()) remove_job(outcome.uid);
  }
  return outcomes;
}

bool Scheduler::has_work() const {
  for (const auto& [device, pool] : pools_) {
    if (pool->has_work()) return true;
  }
  return false;
}

std::optional<Misfit> Scheduler::misfit(const PendingJob& job) const {
  const auto it = pools_.find(job.device);
  if (it != pools_.end()) return it->second->misfit(job, totals_);
  Ledger nothing;
  return Pool(job.device, nothing).misfit(job, totals_);
}

std::vector<Reservation> Scheduler::reservations() const {
  std::vector<Reservation> reservations;
  for (const auto& [device, pool] : pools_) {
    if (pool->promised() != nullptr) reservations.push_back(pool->reservation());
  }
  return reservations;
}

void Scheduler::restore(const Reservation& reservation) {
  const auto it = jobs_.find(reservation.uid);
  if (it != jobs_.end()) pool(it->second->job.device).restore(*it->second, reservation);
}

std::vector<int> Scheduler::free_devices(const std::string& node) const {
  const NodeInfo* state = ledger_.find(node);
  if (state == nullptr || !state->known) return {};
  return scheduler::free_devices(*state);
}

}  // namespace titan::scheduler
