// Explains with counts why a job waits.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "controller/scheduler/pool.h"

namespace titan::scheduler {
namespace {

constexpr char kNoNodeYet[] = "waits for the first worker to register; start titan-worker on a node";

// Returns "projects/p/jobs/" for "projects/p/jobs/a".
std::string project_of(const std::string& job) { return job.substr(0, job.rfind('/') + 1); }

Misfit too_few_wide_nodes(const PendingJob& job, int wide, int nodes, const std::string& more) {
  return {"RANKS_PER_NODE_UNSATISFIABLE",
          absl::StrCat("needs ", counted(job.ranks / job.ranks_per_node, "node"), " with ",
                       counted(job.ranks_per_node, job.device + " device"), " each; ", wide, " of ",
                       counted(nodes, "node"), wide == 1 ? " has" : " have", " that many", more)};
}

Misfit too_few_units(const PendingJob& job, int64_t units) {
  return {"UNIT_UNSATISFIABLE", absl::StrCat("needs ", counted(job.ranks / job.unit, "group"), " of ",
                                             counted(job.unit, job.device + " device"),
                                             ", each on one node; when idle, the nodes can hold ", units)};
}

Misfit indivisible(const PendingJob& job) {
  const bool fixed = job.ranks_per_node > 0;
  return {fixed ? "RANKS_PER_NODE_UNSATISFIABLE" : "UNIT_UNSATISFIABLE",
          absl::StrCat(counted(job.ranks, "rank"), " cannot be divided into ",
                       fixed ? absl::StrCat(job.ranks_per_node, " per node") : absl::StrCat("groups of ", job.unit))};
}

}  // namespace

std::optional<Misfit> Pool::misfit(const PendingJob& job, const NodeTotals& totals) const {
  const GangRequest request = GangRequest::of(job);
  const Counts& known = nodes_.known();
  const int nodes = known.at_least(1);
  if (request.divides() && known.capacity(request) >= job.ranks) return std::nullopt;
  if (totals.known == 0) return Misfit{"NO_NODES", kNoNodeYet};
  if (nodes == 0) {
    return Misfit{"WRONG_DEVICE",
                  absl::StrCat("the job requests ", job.device, " devices and no node has any; see resources.device")};
  }
  if (!request.divides()) return indivisible(job);
  if (job.ranks_per_node > 0) {
    return too_few_wide_nodes(job, known.at_least(job.ranks_per_node), nodes,
                              absl::StrCat(", and the largest has ", known.widest(),
                                           "; resources.ranks_per_node = 0 leaves the placement to the scheduler"));
  }
  if (known.devices() >= job.ranks) return too_few_units(job, known.capacity(request) / request.unit);
  return Misfit{"INSUFFICIENT_DEVICES",
                absl::StrCat("needs ", counted(job.ranks, job.device + " device"), ", and ",
                             nodes == 1 ? "the one node has " : absl::StrCat("all ", nodes, " nodes together have "),
                             known.devices(), "; use fewer ranks or add nodes")};
}

Misfit Pool::reason_of(const Waiting& job, const NodeTotals& totals) const {
  const PendingJob& asks = job.job;
  if (totals.known == 0) return {"NO_NODES", kNoNodeYet};
  if (totals.ready == 0 && totals.unusable > 0) {
    return {"NODES_UNUSABLE", absl::StrCat("no worker node is ready, and ", totals.unusable,
                                           totals.unusable == 1 ? " says that it" : " say that they",
                                           " can take no ranks now (a full disk?); see titanctl node list")};
  }
  if (totals.ready == 0) return {"NO_NODES", "no worker node is ready; start titan-worker on a node"};
  if (totals.ready_cordoned == totals.ready) {
    return {"ALL_CORDONED", absl::StrCat(totals.ready == 1 ? "the one ready node is"
                                                           : absl::StrCat("all ", totals.ready, " ready nodes are"),
                                         " cordoned; see titanctl node uncordon")};
  }
  const ExcludedNodes excluded = excluded_nodes(job);
  const int usable = nodes_.usable().at_least(0);
  const int nodes = usable - static_cast<int>(excluded.hidden.size());
  if (usable == 0) {
    return {"WRONG_DEVICE", absl::StrCat("the job requests ", asks.device, " devices and no ready node has any")};
  }
  if (nodes == 0) {
    return {"ALL_REFUSED", absl::StrCat("no ready ", asks.device, " node is left for this job; it refuses ",
                                        absl::StrJoin(asks.refused, ", "))};
  }
  if (!job.request.divides()) return indivisible(asks);
  if (!excluded.fits_idle) {
    int wide = nodes_.usable().at_least(job.request.least());
    int64_t devices = nodes_.usable().devices(), capacity = nodes_.usable().capacity(job.request);
    for (const NodeInfo* node : excluded.hidden) {
      wide -= node->standing.devices >= job.request.least() ? 1 : 0;
      devices -= node->standing.devices;
      capacity -= job.request.share(node->standing.devices);
    }
    if (asks.ranks_per_node > 0) return too_few_wide_nodes(asks, wide, nodes, "");
    if (devices >= asks.ranks) return too_few_units(asks, capacity / job.request.unit);
  }
  return lack(job, excluded, nodes);
}

// Returns the reason if too few devices are free, or if the ready nodes have too few devices in total.
Misfit Pool::lack(const Waiting& job, const ExcludedNodes& excluded, int nodes) const {
  const PendingJob& asks = job.job;
  const bool behind = promise_.job != nullptr && promise_.job->place < job.place;
  int64_t devices = nodes_.usable().devices();
  int64_t free = 0, kept = 0, capacity = 0;
  for (const bool promised : {false, true}) {
    if (promised && behind) continue;
    free += nodes_.index(promised).counts().devices();
    kept += nodes_.unclaimed(promised).devices() - nodes_.index(promised).counts().devices();
    capacity += nodes_.index(promised).counts().capacity(job.request);
  }
  for (const NodeInfo* node : excluded.hidden) {
    devices -= node->standing.devices;
    if (behind && node->targeted) continue;
    free -= node->standing.free;
    kept -= node->standing.unclaimed - node->standing.free;
    capacity -= job.request.share(node->standing.free);
  }
  std::string counts = absl::StrCat("needs ", counted(asks.ranks, asks.device + " device"), "; ", free, " of ", devices,
                                    free == 1 ? " is" : " are", " free on ", counted(nodes, "node"));
  if (free >= asks.ranks && asks.ranks_per_node > 0) {
    absl::StrAppend(&counts, ", and ", capacity / asks.ranks_per_node, " of ",
                    counted(asks.ranks / asks.ranks_per_node, "node"), " with ", asks.ranks_per_node, " free");
  } else if (free >= asks.ranks && job.request.unit > 1) {
    absl::StrAppend(&counts, ", with space for ", capacity / job.request.unit, " of ",
                    counted(asks.ranks / job.request.unit, "group"), " of ", job.request.unit);
  }
  if (kept > 0) absl::StrAppend(&counts, "; ", kept, kept == 1 ? " is" : " are", " reserved for recovering jobs");
  if (!excluded.hidden.empty() && !asks.avoided.empty() && excluded.last.empty()) {
    absl::StrAppend(&counts, " (avoided: ", absl::StrJoin(asks.avoided, ", "), ")");
  }
  if (!asks.refused.empty()) absl::StrAppend(&counts, " (refused: ", absl::StrJoin(asks.refused, ", "), ")");
  if (behind && excluded.fits_idle) {
    const std::string& first = promise_.job->job.name;
    // A user who sees this job may not be allowed to see the first one.
    const bool foreign = project_of(first) != project_of(asks.name);
    return {"BEHIND_IN_QUEUE", absl::StrCat(counts, "; behind ", foreign ? kForeignJob : first, " in the queue")};
  }
  return {"INSUFFICIENT_DEVICES", counts};
}

void Pool::report_reason(Waiting& job, const NodeTotals& totals, std::vector<Outcome>& outcomes) {
  Misfit misfit = reason_of(job, totals);
  never_reported_.erase(&job);
  if (misfit.reason == job.reason && misfit.message == job.message) return;
  job.reason = misfit.reason;
  job.message = misfit.message;
  outcomes.push_back({job.job.uid, {}, std::move(misfit.reason), std::move(misfit.message)});
}

// A third of the visits each goes to the front of the queue, to jobs without a reason, and to all jobs in rotation. A
// job gets no reason before a cycle has looked at it.
void Pool::report_reasons(int visits, const NodeTotals& totals, std::vector<Outcome>& outcomes) {
  const auto seen = [&](const Waiting* job) { return !cut_ || job->place < *cut_; };
  const std::set<Waiting*, InPlace>& jobs = queue_.jobs();
  if (reported_facts_ != facts_) to_visit_ = jobs.size();
  reported_facts_ = facts_;
  to_visit_ = std::min(to_visit_, jobs.size());
  if (to_visit_ == 0) return;
  int left = std::max(1, visits / 3);
  for (auto it = jobs.begin(); it != jobs.end() && seen(*it) && left > 0; ++it, --left) {
    report_reason(**it, totals, outcomes);
  }
  left = std::max(1, visits / 3);
  while (!never_reported_.empty() && seen(*never_reported_.begin()) && left-- > 0) {
    report_reason(**never_reported_.begin(), totals, outcomes);
  }
  left = std::max(1, visits / 3);
  for (auto it = jobs.upper_bound(visited_); left > 0 && to_visit_ > 0; --left, --to_visit_) {
    if (it == jobs.end() || !seen(*it)) it = jobs.begin();
    if (!seen(*it)) return;
    report_reason(**it, totals, outcomes);
    visited_ = (*it)->place;
    ++it;
  }
}

}  // namespace titan::scheduler
