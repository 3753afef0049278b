// A small cluster in virtual time: jobs come, run, lose nodes and recover. Every seed is checked for what must never
// happen (a device given twice, half a gang) and for what must happen (every gang that fits is placed in bounded time).

#include <algorithm>
#include <map>
#include <random>

#include "controller/scheduler/plan.h"
#include "gtest/gtest.h"

namespace titan::scheduler {
namespace {

struct SimulatedJob {
  JobView view;
  std::vector<job::Placement> placements;  // While running.
  int time_left = 0;
  int waited = 0;
};

class Simulation {
 public:
  explicit Simulation(unsigned seed) : random_(seed) {
    const int nodes = 1 + static_cast<int>(random_() % 5);
    for (int i = 0; i < nodes; ++i) {
      const int devices = 1 + static_cast<int>(random_() % 4);
      nodes_.push_back({"n" + std::to_string(i), "cpu", devices, devices, true, false});
    }
  }

  void run() {
    for (int time = 0; time < 40; ++time) {
      if (time < 25 && random_() % 2 == 0) submit();
      if (time < 25 && random_() % 8 == 0) flap();
      step();
    }
    for (NodeView& node : nodes_) node.ready = true;
    for (int time = 0; time < 2000 && !waiting_.empty(); ++time) step();
    for (const SimulatedJob& job : waiting_) {
      ADD_FAILURE() << job.view.name << " with " << job.view.ranks << " ranks, " << job.view.ranks_per_node
                    << " per node, fits but was never placed";
    }
  }

 private:
  bool fits(const JobView& job) const {
    int total = 0, wide = 0;
    for (const NodeView& node : nodes_) {
      total += node.devices;
      if (job.ranks_per_node > 0 && node.devices >= job.ranks_per_node) ++wide;
    }
    return job.ranks_per_node > 0 ? wide * job.ranks_per_node >= job.ranks : total >= job.ranks;
  }

  void submit() {
    SimulatedJob job;
    job.view.order = ++submitted_;
    job.view.uid = job.view.name = "j" + std::to_string(submitted_);
    job.view.device = "cpu";
    job.view.ranks_per_node = static_cast<int>(random_() % 3);
    job.view.ranks = (1 + static_cast<int>(random_() % 5)) * std::max(1, job.view.ranks_per_node);
    job.view.priority = static_cast<int>(random_() % 3);
    if (fits(job.view)) waiting_.push_back(job);
  }

  // A node is lost or comes back; gangs on a lost one recover and keep what they have elsewhere.
  void flap() {
    NodeView& node = nodes_[random_() % nodes_.size()];
    node.ready = !node.ready;
    if (node.ready) return;
    for (SimulatedJob& job : waiting_) job.view.reserved.erase(node.name);
    for (auto it = running_.begin(); it != running_.end();) {
      const bool hit = std::any_of(it->placements.begin(), it->placements.end(),
                                   [&](const job::Placement& p) { return p.node == node.name; });
      if (!hit) {
        ++it;
        continue;
      }
      it->view.recovering = true;
      for (const job::Placement& p : it->placements) {
        if (p.node != node.name) it->view.reserved[p.node] = p.num_ranks;
      }
      it->placements.clear();
      waiting_.push_back(*it);
      it = running_.erase(it);
    }
  }

  void step() {
    for (auto it = running_.begin(); it != running_.end();) it = --it->time_left == 0 ? running_.erase(it) : it + 1;
    count_free();
    std::vector<JobView> views;
    for (const SimulatedJob& job : waiting_) views.push_back(job.view);
    for (const Decision& decision : plan(views, nodes_)) {
      const auto job = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const SimulatedJob& j) { return j.view.uid == decision.uid; });
      ASSERT_NE(job, waiting_.end());
      ASSERT_NE(decision.placements.empty(), decision.reason.empty());
      if (decision.placements.empty()) continue;
      check(job->view, decision.placements);
      job->placements = decision.placements;
      job->view.recovering = false;
      job->view.reserved.clear();
      job->time_left = 1 + static_cast<int>(random_() % 6);
      running_.push_back(*job);
      waiting_.erase(job);
    }
    count_free();
  }

  void check(const JobView& job, const std::vector<job::Placement>& placements) {
    int next = 0;
    for (const job::Placement& placement : placements) {
      ASSERT_EQ(placement.first_rank, next);
      ASSERT_GT(placement.num_ranks, 0);
      if (job.ranks_per_node > 0) {
        ASSERT_EQ(placement.num_ranks, job.ranks_per_node);
      }
      next += placement.num_ranks;
    }
    ASSERT_EQ(next, job.ranks);
  }

  void count_free() {
    std::map<std::string, int> used;
    for (const SimulatedJob& job : running_) {
      for (const job::Placement& p : job.placements) used[p.node] += p.num_ranks;
    }
    for (NodeView& node : nodes_) {
      node.free = node.devices - used[node.name];
      ASSERT_GE(node.free, 0) << node.name;
    }
  }

  std::mt19937 random_;
  std::vector<NodeView> nodes_;
  std::vector<SimulatedJob> waiting_, running_;
  int64_t submitted_ = 0;
};

TEST(SimulationTest, EveryGangThatFitsIsPlaced) {
  for (unsigned seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace titan::scheduler
