#pragma once

// One simulated history: users who submit and cancel, faults of every kind, then rest; and what must hold throughout.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/cluster.h"

namespace titan::simulation {

enum class Fault {
  // Of machines, ranks and their network.
  kRankKilled,
  kRankStuck,
  kShimKilled,
  kMachineCrash,
  kDataPartition,
  kHungStorage,
  kBrokenNode,  // Refuses every attempt, for ever.
  kUnkillableRanks,
  kPoisonEvent,
  // Of the control plane: no healthy job may notice.
  kControllerCrash,
  kStoreRestored,
  kDiskFull,
  kStreamReset,
  kPartition,
  kOneWayPartition,
  kSlowNetwork,
  kDaemonCrash,
  kSlowDisk,
  kCount,
};
std::string name(Fault fault);

struct Size {
  int nodes = 4;
  int devices = 2;
  int jobs = 4;
  absl::Duration chaos = absl::Seconds(60);
  double faults_per_second = 0.15;
};

// Mostly small clusters: most of what can go wrong needs few nodes.
Size size_of(uint64_t seed);

struct Outcome {
  std::vector<std::string> violations;
  std::map<Fault, int> faults;  // How often each struck.
  int64_t events = 0;
  absl::Duration simulated;
};

class Scenario {
 public:
  Scenario(uint64_t seed, const Size& size);
  Outcome run();

 private:
  struct Shown {
    int64_t revision = 0;
    std::string state;
    bool over = false;
    int64_t committed = 0;
    std::string waits_for;
  };

  void plan();
  void strike(Fault fault);
  void user_acts();
  void submit(int number);
  void rest();
  void see(const reconcile::JobView& view);
  void controller_started();
  bool all_over() const;
  std::string some_node();
  absl::Duration for_a_while(double least, double most);

  Cluster cluster_;
  Random& random_;
  const Size size_;
  Outcome outcome_;
  std::map<std::string, Shown> shown_;       // By uid.
  std::set<std::string> acknowledged_;       // Uids.
  std::map<std::string, std::string> uids_;  // By job id.
  std::set<std::string> broken_;
  std::vector<std::vector<store::Record>> backups_;
  bool restored_ = false;
  bool resting_ = false;
};

}  // namespace titan::simulation
