#include "controller/scheduler/plan.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/counted.h"

namespace titan::scheduler {
namespace {

constexpr char kNoNodes[] = "waits for the first worker to register; start titan-worker on a node";

struct Candidate {
  const NodeView* node;
  int capacity;  // Devices that this job may take there.
};

// Ranks in the nodes' order; a job that returns to a node keeps the order by name, so that the same nodes give the same
// ranks.
std::vector<job::Placement> number_ranks(std::vector<std::pair<std::string, int>> shares) {
  std::sort(shares.begin(), shares.end());
  std::vector<job::Placement> placements;
  int next = 0;
  for (const auto& [node, ranks] : shares) {
    placements.push_back({node, next, ranks});
    next += ranks;
  }
  return placements;
}

std::vector<job::Placement> place_fixed(const JobView& job, const std::vector<Candidate>& candidates) {
  if (job.ranks % job.ranks_per_node != 0) return {};
  const int wanted = job.ranks / job.ranks_per_node;
  std::vector<std::pair<std::string, int>> shares;
  for (const Candidate& candidate : candidates) {
    if (static_cast<int>(shares.size()) == wanted) break;
    if (candidate.capacity >= job.ranks_per_node) shares.emplace_back(candidate.node->name, job.ranks_per_node);
  }
  if (static_cast<int>(shares.size()) < wanted) return {};
  return number_ranks(std::move(shares));
}

std::vector<job::Placement> place_packed(const JobView& job, const std::vector<Candidate>& candidates) {
  // One node if any has room: the tightest fit, so that large holes stay for large jobs.
  const Candidate* tightest = nullptr;
  for (const Candidate& candidate : candidates) {
    if (candidate.capacity < job.ranks) continue;
    const bool holds = job.reserved.count(candidate.node->name) > 0;
    const bool best_holds = tightest != nullptr && job.reserved.count(tightest->node->name) > 0;
    if (tightest == nullptr ||
        std::make_tuple(!holds, candidate.capacity) < std::make_tuple(!best_holds, tightest->capacity)) {
      tightest = &candidate;
    }
  }
  if (tightest != nullptr) return number_ranks({{tightest->node->name, job.ranks}});
  std::vector<std::pair<std::string, int>> shares;
  int left = job.ranks;
  for (const Candidate& candidate : candidates) {
    if (left == 0) break;
    const int taken = std::min(left, candidate.capacity);
    if (taken == 0) continue;
    shares.emplace_back(candidate.node->name, taken);
    left -= taken;
  }
  if (left > 0) return {};
  return number_ranks(std::move(shares));
}

// Nodes that the job holds come first, then the roomiest: the fewest nodes, and the ones that it knows.
std::vector<job::Placement> place(const JobView& job, std::vector<Candidate> candidates) {
  std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    const auto key = [&](const Candidate& c) {
      return std::make_tuple(job.reserved.count(c.node->name) == 0, -c.capacity, std::cref(c.node->name));
    };
    return key(a) < key(b);
  });
  return job.ranks_per_node > 0 ? place_fixed(job, candidates) : place_packed(job, candidates);
}

class Planner {
 public:
  Planner(std::vector<NodeView> nodes, std::vector<JobView>& ordered) : nodes_(std::move(nodes)) {
    for (const NodeView& node : nodes_) free_[node.name] = node.free;
    for (JobView& job : ordered) {
      for (auto& [node, devices] : job.reserved) {
        int& free = free_[node];
        devices = std::max(0, std::min(devices, free));
        free -= devices;
        if (job.recovering) stealable_[node] += devices;
      }
    }
  }

  // Jobs in their order, each once.
  Decision consider(JobView& job, std::vector<JobView>& ordered) {
    for (const auto& [node, devices] : job.reserved) {
      if (job.recovering) stealable_[node] -= devices;
    }
    if (!job.avoided.empty() && place(job, usable(job, Pool::kIdle)).empty()) job.avoided.clear();
    Decision decision{job.uid, place(job, usable(job, Pool::kFree)), "", ""};
    if (decision.placements.empty() && job.recovering) decision.placements = place(job, usable(job, Pool::kStealable));
    if (!decision.placements.empty()) {
      take(job, decision.placements, ordered);
      return decision;
    }
    std::tie(decision.reason, decision.message) = explain(job);
    earmark(job);
    return decision;
  }

 private:
  enum class Pool {
    kFree,       // Free, and what the job holds itself.
    kStealable,  // And what recovering jobs after it hold.
    kIdle,       // As if nothing ran, to see whether the cluster is large enough at all.
  };

  std::vector<Candidate> usable(const JobView& job, Pool pool) const {
    std::vector<Candidate> candidates;
    for (const NodeView& node : nodes_) {
      if (!node.ready || node.cordoned || node.device != job.device || job.avoided.contains(node.name)) continue;
      int capacity = node.devices;
      if (pool != Pool::kIdle) {
        const auto held = job.reserved.find(node.name);
        capacity = free_.at(node.name) + (held == job.reserved.end() ? 0 : held->second);
        const auto more = stealable_.find(node.name);
        if (pool == Pool::kStealable && more != stealable_.end()) capacity += more->second;
      }
      if (capacity > 0) candidates.push_back({&node, capacity});
    }
    return candidates;
  }

  void take(JobView& job, const std::vector<job::Placement>& placements, std::vector<JobView>& ordered) {
    for (const auto& [node, devices] : job.reserved) free_[node] += devices;  // Its own, used or given back.
    job.reserved.clear();
    for (const job::Placement& placement : placements) {
      int& free = free_[placement.node];
      free -= placement.num_ranks;
      for (auto victim = ordered.rbegin(); free < 0 && victim != ordered.rend(); ++victim) {
        const auto held = victim->reserved.find(placement.node);
        if (held == victim->reserved.end() || !victim->recovering) continue;
        const int stolen = std::min(-free, held->second);
        held->second -= stolen;
        stealable_[placement.node] -= stolen;
        free += stolen;
      }
    }
  }

  // The nodes that the job waits for: where it would run if they were idle, the emptiest first.
  void earmark(const JobView& job) {
    std::vector<Candidate> candidates = usable(job, Pool::kIdle);
    std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
      const auto key = [&](const Candidate& c) {
        return std::make_tuple(job.reserved.count(c.node->name) == 0, -free_.at(c.node->name), -c.capacity,
                               std::cref(c.node->name));
      };
      return key(a) < key(b);
    });
    const std::vector<job::Placement> target =
        job.ranks_per_node > 0 ? place_fixed(job, candidates) : place_first(job, candidates);
    for (const job::Placement& placement : target) {
      free_[placement.node] = 0;
    }
    if (!target.empty() && head_.empty()) head_ = job.name;
  }

  static std::vector<job::Placement> place_first(const JobView& job, const std::vector<Candidate>& candidates) {
    std::vector<std::pair<std::string, int>> shares;
    int left = job.ranks;
    for (const Candidate& candidate : candidates) {
      if (left == 0) break;
      const int taken = std::min(left, candidate.capacity);
      shares.emplace_back(candidate.node->name, taken);
      left -= taken;
    }
    if (left > 0) return {};
    return number_ranks(std::move(shares));
  }

  std::pair<std::string, std::string> explain(const JobView& job) const {
    int ready = 0, cordoned = 0, fitting = 0, devices = 0, free = 0, wide_enough = 0;
    for (const NodeView& node : nodes_) {
      if (!node.ready) continue;
      ++ready;
      if (node.cordoned) {
        ++cordoned;
        continue;
      }
      if (node.device != job.device || job.avoided.contains(node.name)) continue;
      ++fitting;
      devices += node.devices;
      free += free_.at(node.name);
      if (node.devices >= job.ranks_per_node) ++wide_enough;
    }
    if (nodes_.empty()) return {"NO_NODES", kNoNodes};
    if (ready == 0) return {"NO_NODES", "no worker node is ready; start titan-worker on a node"};
    if (cordoned == ready) {
      return {"ALL_CORDONED",
              absl::StrCat(ready == 1 ? "the one ready node is" : absl::StrCat("all ", ready, " ready nodes are"),
                           " cordoned; see titanctl node uncordon")};
    }
    if (fitting == 0) {
      return {"WRONG_DEVICE", absl::StrCat("the job asks for ", job.device, " devices and no ready node has any")};
    }
    if (job.ranks_per_node > 0 && wide_enough < job.ranks / job.ranks_per_node) {
      return {"RANKS_PER_NODE_UNSATISFIABLE",
              absl::StrCat("needs ", counted(job.ranks / job.ranks_per_node, "node"), " with ",
                           counted(job.ranks_per_node, job.device + " device"), " each; ", wide_enough, " of ",
                           counted(fitting, "node"), wide_enough == 1 ? " has" : " have", " so many")};
    }
    const std::string counts =
        absl::StrCat("needs ", counted(job.ranks, job.device + " device"), "; ", free, " of ", devices,
                     free == 1 ? " is" : " are", " free on ", counted(fitting, "node"),
                     job.avoided.empty() ? "" : absl::StrCat(" (avoided: ", absl::StrJoin(job.avoided, ", "), ")"));
    if (devices >= job.ranks && !head_.empty()) {
      return {"BEHIND_IN_QUEUE", absl::StrCat(counts, " after what ", head_, " waits for")};
    }
    return {"INSUFFICIENT_DEVICES", counts};
  }

  std::vector<NodeView> nodes_;
  std::map<std::string, int> free_;       // Neither used, nor held, nor waited for.
  std::map<std::string, int> stealable_;  // Held by recovering jobs that were not considered yet.
  std::string head_;                      // First job that waits although the cluster is large enough.
};

}  // namespace

std::optional<Misfit> misfit(const JobView& job, const std::vector<NodeView>& nodes) {
  int fitting = 0, devices = 0, widest = 0, wide_enough = 0;
  std::vector<Candidate> candidates;
  for (const NodeView& node : nodes) {
    if (node.device != job.device || node.devices == 0) continue;
    candidates.push_back({&node, node.devices});
    ++fitting;
    devices += node.devices;
    widest = std::max(widest, node.devices);
    if (node.devices >= job.ranks_per_node) ++wide_enough;
  }
  if (!place(job, candidates).empty()) return std::nullopt;
  if (nodes.empty()) return Misfit{"NO_NODES", kNoNodes};
  if (fitting == 0) {
    return Misfit{"WRONG_DEVICE",
                  absl::StrCat("the job asks for ", job.device, " devices and no node has any; see resources.device")};
  }
  if (job.ranks_per_node > 0 && wide_enough < job.ranks / job.ranks_per_node) {
    return Misfit{
        "RANKS_PER_NODE_UNSATISFIABLE",
        absl::StrCat("needs ", counted(job.ranks / job.ranks_per_node, "node"), " with ",
                     counted(job.ranks_per_node, job.device + " device"), " each; ", wide_enough, " of ",
                     counted(fitting, "node"), wide_enough == 1 ? " has" : " have", " so many, and the largest has ",
                     widest, "; resources.ranks_per_node = 0 leaves the placement to the scheduler")};
  }
  return Misfit{
      "INSUFFICIENT_DEVICES",
      absl::StrCat("needs ", counted(job.ranks, job.device + " device"), ", and ",
                   fitting == 1 ? "the one node has " : absl::StrCat("all ", fitting, " nodes together have "), devices,
                   "; use fewer ranks or add nodes")};
}

std::vector<Decision> plan(std::vector<JobView> jobs, std::vector<NodeView> nodes) {
  std::sort(jobs.begin(), jobs.end(), [](const JobView& a, const JobView& b) {
    return std::make_tuple(!a.recovering, -a.priority, a.order) < std::make_tuple(!b.recovering, -b.priority, b.order);
  });
  Planner planner(std::move(nodes), jobs);
  std::vector<Decision> decisions;
  decisions.reserve(jobs.size());
  for (JobView& job : jobs) decisions.push_back(planner.consider(job, jobs));
  return decisions;
}

}  // namespace titan::scheduler
