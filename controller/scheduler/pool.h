#pragma once

// Keeps the nodes and waiting jobs of one kind of device, and what is promised to the first that cannot run yet.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/scheduler/node_state.h"
#include "controller/scheduler/nodes.h"
#include "controller/scheduler/queue.h"
#include "controller/scheduler/types.h"

namespace titan::scheduler {

// Of one cycle, for each kind of device.
struct Limits {
  int placements = 1000;
  int reasons = 200;  // Jobs that are asked for one; said is what changed.
};

// Of all kinds of nodes together, for reasons.
struct NodeTotals {
  int known = 0;
  int ready = 0;
  int ready_cordoned = 0;
  int unusable = 0;  // Not ready only since their workers say that they can prepare no rank.
};

// Nodes and waiting jobs of one kind of device.
class Pool {
 public:
  Pool(const std::string& device, Ledger& ledger) : ledger_(ledger), nodes_(device) {}

  void attach(NodeState& node);
  void detach(NodeState& node);
  void refresh(NodeState& node);

  void add(Waiting& job);
  void remove(Waiting& job);

  // Places what fits, in the queue's order, and appends an outcome for each; then appends the reasons that are new.
  // Placed jobs have their devices claimed and are out of the queue.
  void cycle(absl::Time now, const Limits& limits, const NodeTotals& totals, std::vector<Outcome>& outcomes);
  bool has_work() const { return dirty_ || facts_ != told_facts_ || to_visit_ > 0; }
  void facts_changed() { ++facts_; }  // Reasons tell of nodes of other kinds too.

  std::optional<Misfit> misfit(const Job& job, const NodeTotals& totals) const;

  const Waiting* promised() const { return promise_.job; }
  Reservation reservation() const;
  // Without effect if one of the nodes is not usable.
  void restore(Waiting& job, const Reservation& reservation);

 private:
  // Devices that the first waiting job was promised.
  struct Promise {
    Waiting* job = nullptr;
    NodeSet nodes;
    absl::Time shadow = absl::InfiniteFuture();
  };
  // Nodes that a job does not use: those refused, and those avoided if the others, were they idle, could hold it.
  struct Shunned {
    std::vector<NodeState*> hidden;
    std::vector<NodeState*> last;  // Avoided, but needed.
    bool fits_idle = false;
  };
  using Shares = std::vector<std::pair<NodeState*, int>>;  // Ranks by node.

  void changed() {
    ++version_;
    ++facts_;
    dirty_ = true;
  }

  void promise_to(Waiting& job, const Shunned& shunned);
  void improve_promise(const Shunned& shunned);
  void set_promise(Waiting& job, NodeSet nodes);
  void drop_promise();

  // placing.cc
  Shunned shun(const Waiting& job) const;
  std::optional<std::vector<Run>> place(Waiting& job, absl::Time now);
  bool may_use_promised(const Waiting& job, absl::Time now) const;
  int64_t most_room(const Waiting& job, const Shunned& shunned, bool promised) const;
  bool could_ever_run(const Waiting& job) const;
  void find_useless();
  NodeIndex* make_room(const Waiting& job, bool promised, std::vector<Waiting*>& lifted);
  Shares choose(NodeIndex& index, const Waiting& job, const Shunned& shunned);
  void choose_own(NodeIndex& index, const Waiting& job, int& left, Shares& shares);
  void choose_more(NodeIndex& index, const Request& request, int& left, Shares& shares);
  void take(NodeState& node, int ranks, int& left, Shares& shares);
  std::vector<Run> settle(Waiting& job, Shares shares, absl::Time now);
  void lift(Waiting& job, bool lifted);

  // reasons.cc
  void tell_reasons(int visits, const NodeTotals& totals, std::vector<Outcome>& outcomes);
  void tell_reason(Waiting& job, const NodeTotals& totals, std::vector<Outcome>& outcomes);
  Misfit reason_of(const Waiting& job, const NodeTotals& totals) const;
  Misfit lack(const Waiting& job, const Shunned& shunned, int nodes) const;

  Ledger& ledger_;
  Nodes nodes_;
  Queue queue_;
  std::set<Waiting*, InPlace> holders_;  // Waiting jobs with devices reserved.
  std::set<Waiting*, InPlace> useless_;  // Those of them that could not run, were every node in service ready and idle.
  bool useless_stale_ = false;
  Promise promise_;
  uint64_t version_ = 1;      // Grows whenever a job that did not fit may fit now.
  bool dirty_ = false;        // Some shape was not looked at since.
  std::optional<Place> cut_;  // Where the last cycle reached its limit; not set: it saw all.

  // Reasons are told to the front of the queue, to those who never heard one, and to all others in turns.
  uint64_t facts_ = 1;       // Grows with whatever a reason may tell of.
  uint64_t told_facts_ = 0;  // At the start of this round.
  size_t to_visit_ = 0;      // Jobs that were not visited since.
  Place visited_;            // Where the round is.
  std::set<Waiting*, InPlace> never_told_;
};

}  // namespace titan::scheduler
