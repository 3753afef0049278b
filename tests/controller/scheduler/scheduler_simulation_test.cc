// Random clusters and events in virtual time, compared with a slow reference that implements only the rules: every
// placement is legal, jobs that are not placed do not fit, and a scheduler that is rebuilt from the same facts decides
// the same. TITAN_SCHEDULER_SEEDS=N runs N seeds.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "controller/scheduler/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::scheduler {
namespace {

using Devices = std::vector<int>;

const absl::Time kEpoch = absl::FromUnixSeconds(1'700'000'000);

struct Part {
  Devices devices;
  absl::Time ends;
};

// The facts, and a slow evaluation that looks at all of them.
struct World {
  Order order;
  std::map<std::string, NodeProperties> nodes;
  std::map<std::string, std::map<std::string, Part>> claims;  // By owner, then by node.
  std::map<std::string, PendingJob> waiting;
  std::map<std::string, PendingJob> running;

  std::vector<PendingJob> queue() const {
    std::vector<PendingJob> jobs;
    for (const auto& [uid, job] : waiting) jobs.push_back(job);
    std::sort(jobs.begin(), jobs.end(), [&](const PendingJob& a, const PendingJob& b) { return before(a, b); });
    return jobs;
  }

  bool before(const PendingJob& a, const PendingJob& b) const {
    if (order == Order::kRecoveringFirst && a.recovering != b.recovering) return a.recovering;
    return std::tuple(-a.priority, !a.recovering, a.order) < std::tuple(-b.priority, !b.recovering, b.order);
  }

  static int share(const PendingJob& job, int devices) {
    if (job.ranks_per_node > 0) return devices >= job.ranks_per_node ? job.ranks_per_node : 0;
    return devices / job.unit * job.unit;
  }

  bool usable(const PendingJob& job, const NodeProperties& node) const {
    return node.device == job.device && node.ready && !node.cordoned && !job.refused.contains(node.name);
  }

  bool claimed(const std::string& node, int device) const {
    return std::any_of(claims.begin(), claims.end(), [&](const auto& owner) {
      const auto part = owner.second.find(node);
      return part != owner.second.end() && std::count(part->second.devices.begin(), part->second.devices.end(), device);
    });
  }

  // Returns whether the job could run if every node that is not cordoned were ready and idle.
  bool could_ever_run(const PendingJob& job) const {
    if (job.ranks % (job.ranks_per_node > 0 ? job.ranks_per_node : job.unit) != 0) return false;
    int capacity = 0;
    for (const auto& [name, node] : nodes) {
      const bool counts = node.device == job.device && !node.cordoned && !job.refused.contains(name);
      if (counts) capacity += share(job, node.devices);
    }
    return capacity >= job.ranks;
  }

  // Returns whether another waiting job has reserved the device. `by_earlier`: the other job keeps it, because it comes
  // first and could run; else it would have to give it up.
  bool held(const PendingJob& job, const std::string& node, int device, bool by_earlier) const {
    return std::any_of(waiting.begin(), waiting.end(), [&](const auto& item) {
      const PendingJob& other = item.second;
      if (other.uid == job.uid || other.device != job.device) return false;
      if ((before(other, job) && could_ever_run(other)) != by_earlier) return false;
      const auto devices = other.reserved.find(node);
      return devices != other.reserved.end() && std::count(devices->second.begin(), devices->second.end(), device) > 0;
    });
  }

  bool holds_idle(const PendingJob& job, bool with_avoided) const {
    if (job.ranks % (job.ranks_per_node > 0 ? job.ranks_per_node : job.unit) != 0) return false;
    int capacity = 0;
    for (const auto& [name, node] : nodes) {
      if (usable(job, node) && (with_avoided || !job.avoided.contains(name))) capacity += share(job, node.devices);
    }
    return capacity >= job.ranks;
  }

  // Returns the ranks that each node can take. `steal`: includes devices that later jobs reserve.
  std::vector<std::pair<const NodeProperties*, int>> shares(const PendingJob& job, const std::set<std::string>& without,
                                                            bool steal) const {
    std::vector<std::pair<const NodeProperties*, int>> shares;
    const bool avoid = holds_idle(job, false);
    for (const auto& [name, node] : nodes) {
      if (!usable(job, node) || without.contains(name) || (avoid && job.avoided.contains(name))) continue;
      int free = 0;
      for (int device = 0; device < node.devices; ++device) {
        if (claimed(name, device) || held(job, name, device, true)) continue;
        if (steal || !held(job, name, device, false)) ++free;
      }
      if (share(job, free) > 0) shares.emplace_back(&node, share(job, free));
    }
    return shares;
  }

  bool fits(const PendingJob& job, const std::set<std::string>& without, bool steal) const {
    if (!holds_idle(job, true)) return false;
    int capacity = 0;
    for (const auto& [node, ranks] : shares(job, without, steal)) capacity += ranks;
    return capacity >= job.ranks;
  }
};

class Simulation {
 public:
  Simulation(Order order, unsigned seed) : random_(seed), world_{.order = order}, scheduler_(order) {
    const int nodes = 1 + pick(6);
    for (int i = 0; i < nodes; ++i) set_node(absl::StrCat("n", i));
  }

  void run() {
    for (int step = 0; step < 60 && !::testing::Test::HasFatalFailure(); ++step) {
      for (int events = pick(4); events > 0; --events) event();
      now_ += absl::Seconds(pick(5));
      cycle();
    }
    run_to_quiescence();
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % below); }
  bool once_in(int times) { return pick(times) == 0; }

  template <typename Map>
  typename Map::iterator any(Map& map) {
    return std::next(map.begin(), pick(static_cast<int>(map.size())));
  }

  void event() {
    switch (pick(12)) {
      case 0:
        return flap();
      case 1:
        return stray();
      case 2:
        if (once_in(3)) return remove_node();
        return set_node(absl::StrCat("n", pick(7)));
      case 3:
        return cancel();
      case 4:
      case 5:
      case 6:
        return end();
      default:
        return submit();
    }
  }

  void set_node(const std::string& name) {
    NodeProperties node{
        name, once_in(5) ? "cuda" : "cpu", 1 + pick(6),
        once_in(8) ? "" : absl::StrCat(once_in(4) ? "" : absl::StrCat("row", pick(2), "/"), "rack", pick(2))};
    node.cordoned = once_in(6);
    node.ready = !once_in(8);
    const auto known = world_.nodes.find(name);
    if (known != world_.nodes.end()) {  // The node returns unchanged or larger.
      node.device = known->second.device;
      node.devices = std::max(node.devices, known->second.devices);
    }
    world_.nodes[name] = node;
    scheduler_.set_node(node);
    if (!node.ready) lose(name);
  }

  void remove_node() {
    if (world_.nodes.empty()) return;
    const std::string name = any(world_.nodes)->first;
    lose(name);
    for (auto& [owner, parts] : world_.claims) parts.erase(name);
    scheduler_.release("stray", name);
    world_.nodes.erase(name);
    scheduler_.remove_node(name);
  }

  // Gangs on a lost node recover and keep their parts on other nodes.
  void lose(const std::string& name) {
    std::vector<PendingJob> hit;
    for (const auto& [uid, job] : world_.running) {
      if (world_.claims[uid].contains(name)) hit.push_back(job);
    }
    for (PendingJob& job : hit) {
      job.recovering = true;
      job.reserved.clear();
      for (const auto& [node, part] : world_.claims[job.uid]) {
        if (node != name) job.reserved[node] = part.devices;
      }
      if (once_in(2)) job.avoided.insert(name);
      release(job.uid);
      add(job);
    }
  }

  void flap() {
    if (world_.nodes.empty()) return;
    NodeProperties& node = any(world_.nodes)->second;
    node.ready = !node.ready;
    scheduler_.set_node(node);
    if (!node.ready) lose(node.name);
  }

  void stray() {
    if (world_.nodes.empty() || once_in(2)) {
      scheduler_.release("stray");
      world_.claims.erase("stray");
      return;
    }
    const NodeProperties& node = any(world_.nodes)->second;
    const Devices devices = {pick(node.devices)};
    Part& part = world_.claims["stray"][node.name];
    if (std::count(part.devices.begin(), part.devices.end(), devices[0]) == 0) part.devices.push_back(devices[0]);
    part.ends = absl::InfiniteFuture();
    scheduler_.occupy("stray", node.name, devices);
  }

  void submit() {
    PendingJob job;
    job.order = ++submitted_;
    job.uid = job.name = absl::StrCat("j", submitted_);
    job.device = once_in(5) ? "cuda" : "cpu";
    job.ranks_per_node = once_in(3) ? 1 + pick(4) : 0;
    job.unit = once_in(3) ? 1 + pick(3) : 1;
    job.ranks = (1 + pick(5)) * std::max(job.unit, job.ranks_per_node);
    if (once_in(30)) job.ranks += 1;
    job.priority = pick(3);
    if (once_in(2)) job.time_limit = absl::Seconds(1 + pick(20));
    if (once_in(8)) job.avoided.insert(absl::StrCat("n", pick(7)));
    if (once_in(12)) job.refused.insert(absl::StrCat("n", pick(7)));
    add(job);
  }

  void add(const PendingJob& job) {
    world_.running.erase(job.uid);
    world_.waiting[job.uid] = job;
    scheduler_.add_job(job);
  }

  void cancel() {
    if (world_.waiting.empty()) return;
    const std::string uid = any(world_.waiting)->first;
    world_.waiting.erase(uid);
    scheduler_.remove_job(uid);
  }

  void end() {
    if (world_.running.empty()) return;
    const std::string uid = any(world_.running)->first;
    world_.running.erase(uid);
    release(uid);
  }

  void release(const std::string& uid) {
    world_.claims.erase(uid);
    scheduler_.release(uid);
  }

  static std::vector<Outcome> placed(std::vector<Outcome> outcomes) {
    std::erase_if(outcomes, [](const Outcome& outcome) { return outcome.runs.empty(); });
    return outcomes;
  }

  // Decides from the facts alone, in another order, and from the reservations.
  std::vector<Outcome> decide_from_scratch(std::vector<Reservation>& reservations) {
    Scheduler scheduler(world_.order);
    std::vector<PendingJob> jobs = world_.queue();
    std::shuffle(jobs.begin(), jobs.end(), random_);
    if (once_in(2)) {
      for (const PendingJob& job : jobs) scheduler.add_job(job);
    }
    for (const auto& [owner, parts] : world_.claims) {
      for (const auto& [node, part] : parts) scheduler.occupy(owner, node, part.devices, part.ends);
    }
    for (const auto& [name, node] : world_.nodes) scheduler.set_node(node);
    for (const PendingJob& job : jobs) {
      if (!scheduler.waits(job.uid)) scheduler.add_job(job);
    }
    for (const Reservation& reservation : scheduler_.reservations()) scheduler.restore(reservation);
    std::vector<Outcome> outcomes = placed(scheduler.cycle(now_));
    reservations = scheduler.reservations();
    return outcomes;
  }

  void cycle() {
    const std::vector<PendingJob> queue = world_.queue();
    std::vector<Reservation> reservations_from_scratch;
    const std::vector<Outcome> from_scratch = decide_from_scratch(reservations_from_scratch);
    const std::vector<Outcome> outcomes = placed(scheduler_.cycle(now_));
    ASSERT_EQ(outcomes, from_scratch);
    const std::map<std::string, Reservation> before = std::exchange(reservations_, {});
    promises_before_ = !before.empty();
    for (const Reservation& reservation : scheduler_.reservations()) {
      ASSERT_TRUE(world_.waiting.contains(reservation.uid));
      reservations_[world_.waiting.at(reservation.uid).device] = reservation;
    }
    ASSERT_EQ(scheduler_.reservations(), reservations_from_scratch);
    std::map<std::string, std::vector<Run>> runs;
    std::map<std::string, std::vector<std::string>> order;  // By kind.
    for (const Outcome& outcome : outcomes) runs[outcome.uid] = outcome.runs;
    std::set<std::string> waits;  // Kinds with a job that waits for a larger cluster.
    for (const PendingJob& job : queue) {
      SCOPED_TRACE(job.uid);
      const auto chosen = runs.find(job.uid);
      if (chosen != runs.end()) {
        ASSERT_NO_FATAL_FAILURE(check(job, chosen->second));
        start(job, chosen->second);
        continue;
      }
      ASSERT_FALSE(world_.fits(job, reserved_for_others(job), true)) << "fits and was not placed";
      if (!world_.holds_idle(job, true) || !waits.insert(job.device).second) continue;
      ASSERT_TRUE(reservations_.contains(job.device));
      ASSERT_NO_FATAL_FAILURE(check_reservation(job, reservations_.at(job.device)));
    }
    ASSERT_EQ(reservations_.size(), waits.size());
    for (const auto& [kind, promise] : reservations_) {
      const auto old = before.find(kind);
      if (old != before.end() && old->second.uid == promise.uid) check_promise_is_kept(old->second, promise, runs);
    }
  }

  // Jobs that started on nodes that stay reserved end by the shadow time, which never moves back meanwhile.
  void check_promise_is_kept(const Reservation& before, const Reservation& now,
                             const std::map<std::string, std::vector<Run>>& started) {
    for (const auto& [uid, runs] : started) {
      for (const Run& run : runs) {
        if (std::count(before.nodes.begin(), before.nodes.end(), run.node) == 0) continue;
        if (std::count(now.nodes.begin(), now.nodes.end(), run.node) == 0) continue;
        ASSERT_LE(world_.claims.at(uid).at(run.node).ends, now.shadow) << uid << " on " << run.node;
      }
    }
  }

  // Returns the nodes that the job may not use because they are reserved for the first waiting job.
  std::set<std::string> reserved_for_others(const PendingJob& job) const {
    const auto it = reservations_.find(job.device);
    if (it == reservations_.end()) return {};
    const Reservation& promise = it->second;
    const PendingJob& owner = world_.waiting.at(promise.uid);
    if (job.uid == owner.uid || world_.before(job, owner)) return {};
    if (promise.shadow != absl::InfiniteFuture() && now_ + job.time_limit <= promise.shadow) return {};
    return {promise.nodes.begin(), promise.nodes.end()};
  }

  void check_reservation(const PendingJob& first, const Reservation& promise) {
    ASSERT_EQ(promise.uid, first.uid);
    const bool avoid = world_.holds_idle(first, false);
    int capacity = 0;
    for (const std::string& name : promise.nodes) {
      ASSERT_TRUE(world_.nodes.contains(name));
      ASSERT_TRUE(world_.usable(first, world_.nodes.at(name)));
      ASSERT_FALSE(avoid && first.avoided.contains(name));
      capacity += World::share(first, world_.nodes.at(name).devices);
    }
    ASSERT_GE(capacity, first.ranks);
  }

  void check(const PendingJob& job, const std::vector<Run>& runs) {
    const std::set<std::string> without = reserved_for_others(job);
    const bool steals = !world_.fits(job, without, false);
    const bool avoid = world_.holds_idle(job, false);
    std::set<std::string> seen;
    int next = 0;
    for (const Run& run : runs) {
      ASSERT_TRUE(world_.nodes.contains(run.node));
      const NodeProperties& node = world_.nodes.at(run.node);
      const int ranks = static_cast<int>(run.devices.size());
      ASSERT_TRUE(world_.usable(job, node)) << run.node;
      ASSERT_TRUE(seen.insert(run.node).second) << run.node << " twice";
      ASSERT_FALSE(without.contains(run.node)) << run.node << " is reserved for another job";
      ASSERT_FALSE(avoid && job.avoided.contains(run.node));
      ASSERT_EQ(run.first_rank, next);
      ASSERT_GT(ranks, 0);
      ASSERT_EQ(job.ranks_per_node > 0 ? ranks - job.ranks_per_node : ranks % job.unit, 0);
      ASSERT_TRUE(std::is_sorted(run.devices.begin(), run.devices.end(), std::less_equal<>())) << "none twice";
      for (const int device : run.devices) {
        ASSERT_TRUE(device >= 0 && device < node.devices);
        ASSERT_FALSE(world_.claimed(run.node, device)) << run.node << ":" << device;
        ASSERT_FALSE(world_.held(job, run.node, device, true)) << "an earlier job has reserved it";
        ASSERT_TRUE(steals || !world_.held(job, run.node, device, false))
            << "a device without a reservation was available";
      }
      next += ranks;
    }
    ASSERT_EQ(next, job.ranks);
    if (!promises_before_ && reservations_.empty() && job.avoided.empty() && job.reserved.empty() && !steals)
      check_shape(job, runs);
  }

  // Returns a node's domains without the root: "row1", "row1/rack2".
  static std::vector<std::string> domains_of(const NodeProperties& node) {
    std::vector<std::string> domains;
    for (size_t end = node.domain.find('/'); end != std::string::npos; end = node.domain.find('/', end + 1)) {
      domains.push_back(node.domain.substr(0, end));
    }
    if (!node.domain.empty()) domains.push_back(node.domain);
    return domains;
  }

  // Checks for the fewest nodes; with ranks_per_node, for one domain of the deepest level with enough space.
  void check_shape(const PendingJob& job, const std::vector<Run>& runs) {
    std::vector<int> shares;
    std::map<std::string, int> available, used;  // Nodes by domain.
    for (const auto& [node, ranks] : world_.shares(job, {}, false)) {
      shares.push_back(ranks);
      for (const std::string& domain : domains_of(*node)) ++available[domain];
    }
    std::sort(shares.rbegin(), shares.rend());
    size_t fewest = 0;
    for (int left = job.ranks; left > 0; left -= shares[fewest++]) ASSERT_LT(fewest, shares.size());
    ASSERT_EQ(runs.size(), fewest);
    if (job.ranks_per_node == 0 || fewest == 1) return;
    for (const Run& run : runs) {
      for (const std::string& domain : domains_of(world_.nodes.at(run.node))) ++used[domain];
    }
    const auto deepest = [&](const std::map<std::string, int>& nodes) {
      int64_t level = 0;
      for (const auto& [domain, count] : nodes) {
        if (count >= static_cast<int>(fewest))
          level = std::max(level, 1 + std::count(domain.begin(), domain.end(), '/'));
      }
      return level;
    };
    ASSERT_EQ(deepest(used), deepest(available));
  }

  void start(const PendingJob& job, const std::vector<Run>& runs) {
    for (const Run& run : runs) world_.claims[job.uid][run.node] = {run.devices, now_ + job.time_limit};
    world_.waiting.erase(job.uid);
    PendingJob started = job;
    started.recovering = false;
    started.reserved.clear();
    world_.running[job.uid] = started;
  }

  // Lets everything end without new events, and checks that every job that could ever run has run. First drops the
  // reservations of recovering gangs for which the cluster is too small: the scheduler leaves that to its caller,
  // because a node that is away may return.
  void run_to_quiescence() {
    for (auto& [name, node] : world_.nodes) {
      node.ready = true;
      node.cordoned = false;
      scheduler_.set_node(node);
    }
    scheduler_.release("stray");
    world_.claims.erase("stray");
    for (PendingJob job : world_.queue()) {
      if (job.reserved.empty() || world_.holds_idle(job, true)) continue;
      job.reserved.clear();
      add(job);
    }
    do {
      now_ += absl::Seconds(1);
      end();
      cycle();
    } while (!world_.running.empty() && !::testing::Test::HasFatalFailure());
    for (const auto& [uid, job] : world_.waiting) EXPECT_FALSE(world_.holds_idle(job, true)) << uid << " never ran";
    EXPECT_EQ(scheduler_.num_waiting(), world_.waiting.size());
  }

  std::mt19937 random_;
  absl::Time now_ = kEpoch;
  World world_;
  Scheduler scheduler_;
  std::map<std::string, Reservation> reservations_;  // By kind, after the last cycle.
  bool promises_before_ = false;
  int64_t submitted_ = 0;
};

TEST(SchedulerSimulationTest, DecidesLikeTheReference) {
  const char* const requested = getenv("TITAN_SCHEDULER_SEEDS");
  unsigned seeds = 500;
  if (requested != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(requested, &seeds)) << requested;
  }
  unsigned first = 0;
  if (const char* const only = getenv("TITAN_SCHEDULER_SEED"); only != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(only, &first)) << only;
    seeds = first + 1;
  }
  for (unsigned seed = first; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation(seed % 4 == 0 ? Order::kRecoveringFirst : Order::kPriorityFirst, seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace titan::scheduler
