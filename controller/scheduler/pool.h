#pragma once

// Keeps the nodes and waiting jobs of one kind of device, and the promise to the first job that cannot run yet.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/scheduler/node_info.h"
#include "controller/scheduler/nodes.h"
#include "controller/scheduler/queue.h"
#include "controller/scheduler/types.h"

namespace titan::scheduler {

// Limits of one cycle, for each kind of device.
struct Limits {
  int placements = 1000;
  int reasons = 200;  // Jobs for which a reason is computed. Only changed reasons are reported.
};

// Counts over all kinds of nodes, for reasons.
struct NodeTotals {
  int known = 0;
  int ready = 0;
  int ready_cordoned = 0;
  int unusable = 0;  // Not ready only because their workers report that they cannot prepare ranks.
};

class Pool {
 public:
  Pool(const std::string& device, Ledger& ledger) : ledger_(ledger), nodes_(device) {}

  void attach(NodeInfo& node);
  void detach(NodeInfo& node);
  // Call it after any change of the node's claims.
  void refresh(NodeInfo& node);

  void add(Waiting& job);
  void remove(Waiting& job);

  // Places jobs that fit, in queue order, and appends an outcome for each. Then appends the reasons that changed. The
  // devices of placed jobs are claimed, and these jobs have left the queue.
  void cycle(absl::Time now, const Limits& limits, const NodeTotals& totals, std::vector<Outcome>& outcomes);
  bool has_work() const { return dirty_ || facts_ != reported_facts_ || to_visit_ > 0; }
  void facts_changed() { ++facts_; }  // Reasons also depend on nodes of other kinds.

  std::optional<Misfit> misfit(const PendingJob& job, const NodeTotals& totals) const;

  const Waiting* promised() const { return promise_.job; }
  Reservation reservation() const;
  // Gives the job the promise again, unless one of its nodes is not usable.
  void restore(Waiting& job, const Reservation& reservation);

 private:
  // Nodes that are promised to the first waiting job.
  struct Promise {
    Waiting* job = nullptr;
    NodeSet nodes;
    absl::Time shadow = absl::InfiniteFuture();
  };
  // Nodes that a job does not use: refused nodes, and avoided ones if the other nodes could hold the job when idle.
  struct ExcludedNodes {
    std::vector<NodeInfo*> hidden;
    std::vector<NodeInfo*> last;  // Avoided, but needed: used last.
    bool fits_idle = false;       // The job would fit if all nodes that it may use were idle.
  };
  using Shares = std::vector<std::pair<NodeInfo*, int>>;  // Ranks by node.

  void changed() {
    ++version_;
    ++facts_;
    dirty_ = true;
  }

  void promise_to(Waiting& job, const ExcludedNodes& excluded);
  void improve_promise(const ExcludedNodes& excluded);
  void set_promise(Waiting& job, NodeSet nodes);
  void drop_promise();

  // placing.cc
  ExcludedNodes excluded_nodes(const Waiting& job) const;
  std::optional<std::vector<Run>> place(Waiting& job, absl::Time now);
  bool may_use_promised(const Waiting& job, absl::Time now) const;
  int64_t max_available(const Waiting& job, const ExcludedNodes& excluded, bool promised) const;
  bool could_ever_run(const Waiting& job) const;
  void find_useless();
  NodeIndex* make_space(const Waiting& job, bool promised, std::vector<Waiting*>& lifted);
  Shares choose(NodeIndex& index, const Waiting& job, const ExcludedNodes& excluded);
  void choose_own(NodeIndex& index, const Waiting& job, int& left, Shares& shares);
  void choose_more(NodeIndex& index, const GangRequest& request, int& left, Shares& shares);
  void take(NodeInfo& node, int ranks, int& left, Shares& shares);
  std::vector<Run> settle(Waiting& job, Shares shares, absl::Time now);
  void lift(Waiting& job, bool lifted);

  // reasons.cc
  void report_reasons(int visits, const NodeTotals& totals, std::vector<Outcome>& outcomes);
  void report_reason(Waiting& job, const NodeTotals& totals, std::vector<Outcome>& outcomes);
  Misfit reason_of(const Waiting& job, const NodeTotals& totals) const;
  Misfit lack(const Waiting& job, const ExcludedNodes& excluded, int nodes) const;

  Ledger& ledger_;
  Nodes nodes_;
  PendingQueue queue_;
  std::set<Waiting*, InPlace> holders_;  // Waiting jobs with reserved devices.
  // Holders that could not run even if every node in service were ready and idle.
  std::set<Waiting*, InPlace> useless_;
  bool useless_stale_ = false;
  Promise promise_;
  uint64_t version_ = 1;      // Grows whenever a job that did not fit may fit now.
  bool dirty_ = false;        // Some shape must be looked at again.
  std::optional<Place> cut_;  // Where the last cycle reached its limit. Not set: it saw all jobs.

  // Reasons are computed for the front of the queue, for jobs that have none yet, and for all other jobs in rotation.
  uint64_t facts_ = 1;           // Grows with every change that may affect a reason.
  uint64_t reported_facts_ = 0;  // Value of facts_ at the start of this round.
  size_t to_visit_ = 0;          // Jobs that this round has not visited yet.
  Place visited_;                // Last place that this round has visited.
  std::set<Waiting*, InPlace> never_reported_;
};

}  // namespace titan::scheduler
