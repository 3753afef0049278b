// Tests reading a machine from trees like the kernel's, and the placement of ranks on it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "worker/rank/topology/placement.h"

namespace titan::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CpuSet cpus(std::string_view list) { return parse_cpu_list(list).value(); }

// Writes the files of /sys and /proc that describe a machine.
class Tree {
 public:
  Tree& file(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << "\n";
    return *this;
  }
  Tree& online(const std::string& list) { return file("/sys/devices/system/cpu/online", list); }
  Tree& node(int id, const std::string& list) {
    return file(absl::StrCat("/sys/devices/system/node/node", id, "/cpulist"), list);
  }
  Tree& core(const std::string& list) {
    for (const int cpu : cpus(list)) {
      file(absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"), list);
    }
    return *this;
  }
  Tree& gpu(const std::string& address, const std::string& node) {
    return file("/sys/bus/pci/devices/" + address + "/numa_node", node);
  }
  std::string root() const { return folder_.path(); }
  Machine read() const { return read_machine(root()); }

 private:
  rank_protocol::TempFolder folder_;
};

// Returns two nodes of eight cores with two threads each, numbered as Linux numbers them.
Machine two_nodes(const std::string& online = "0-31") {
  Tree tree;
  tree.online(online).node(0, "0-7,16-23").node(1, "8-15,24-31");
  for (int core = 0; core < 16; ++core) tree.core(absl::StrCat(core, ",", core + 16));
  return tree.read();
}

std::vector<std::string> places(const Machine& machine, const Homes& homes) {
  std::vector<std::string> all;
  for (size_t rank = 0; rank < homes.size(); ++rank) {
    const auto placed = place(machine, machine.allowed, homes, static_cast<int>(rank));
    all.push_back(placed.ok() ? to_text(placed->cpus) : std::string(placed.status().message()));
  }
  return all;
}

TEST(CpuListTest, ParsesAndPrintsTheKernelsFormat) {
  for (const char* list : {"", "0", "0-3", "0-3,8,10-11", "5,7,9"}) EXPECT_EQ(to_text(cpus(list)), list);
  EXPECT_EQ(to_text(cpus(" 3,1-2\n")), "1-3");
  for (const char* wrong : {"a", "1-", "-1", "3-1", "1,,2", "0-9999999", "1-2-3"}) {
    EXPECT_FALSE(parse_cpu_list(wrong).has_value()) << wrong;
  }
}

TEST(MachineTest, ReadsNodesCoresAndGpus) {
  Tree tree;
  tree.online("0-7").node(0, "0-3").node(2, "4-7").node(1, "").core("0-1").core("2-3");  // Node 1 has only memory.
  tree.gpu("0000:3b:00.0", "2").gpu("0000:5e:00.0", "-1");
  const Machine machine = tree.read();
  ASSERT_EQ(machine.nodes.size(), 2U);
  EXPECT_EQ(machine.nodes[1].id, 2);
  EXPECT_EQ(machine.nodes[1].cpus, cpus("4-7"));
  EXPECT_EQ(machine.core.at(3), 2);
  EXPECT_EQ(machine.allowed, cpus("0-7")) << "no control group says otherwise";
  EXPECT_EQ(node_of_device("0000:3B:00.0", tree.root()), 2);
  EXPECT_EQ(node_of_device("0000:5E:00.0", tree.root()), std::nullopt) << "the kernel's word for unknown";
  EXPECT_EQ(node_of_device("0000:99:00.0", tree.root()), std::nullopt);
}

TEST(MachineTest, WithoutNumaIsOneNode) {
  Tree tree;
  const Machine machine = tree.online("0-3").read();
  ASSERT_EQ(machine.nodes.size(), 1U);
  EXPECT_EQ(machine.nodes[0].cpus, cpus("0-3"));
  const Homes homes = homes_of_gpus(machine, {std::nullopt, std::nullopt}).value();
  EXPECT_THAT(places(machine, homes), ElementsAre("0-1", "2-3"));
  EXPECT_FALSE(place(machine, machine.allowed, homes, 0)->prefers_memory) << "there is no other memory";
}

TEST(MachineTest, OfflineCpusGoToNoRank) {
  const Machine machine = two_nodes("0-5,8-21,24-31");
  EXPECT_EQ(machine.nodes[0].cpus, cpus("0-5,16-21"));
  EXPECT_THAT(places(machine, homes_of_gpus(machine, {0, 0, 1}).value()),
              ElementsAre("0-2,16-18", "3-5,19-21", "8-15,24-31"));
}

// Both versions of control groups are read; a group without a list of CPUs inherits its parent's.
TEST(MachineTest, ControlGroupsLimitTheCpus) {
  Tree second;
  second.online("0-7").node(0, "0-7").file("/proc/self/cgroup", "0::/pod/main");
  EXPECT_EQ(second.read().allowed, cpus("0-7"));
  second.file("/sys/fs/cgroup/cpuset.cpus.effective", "0-7");
  second.file("/sys/fs/cgroup/pod/cpuset.cpus.effective", "2-5,9");
  EXPECT_EQ(second.read().allowed, cpus("2-5"));
  Tree first;
  first.online("0-7").node(0, "0-7").file("/proc/self/cgroup", "9:memory:/x\n7:cpuset,cpu:/pod\n0::/");
  first.file("/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "4-6");  // In a container the group is the mount's root.
  EXPECT_EQ(first.read().allowed, cpus("4-6"));
}

TEST(PlacementTest, GpuRanksGoToTheirGpus) {
  const Machine machine = two_nodes();
  const Homes homes = homes_of_gpus(machine, {1, 0, 1, 0}).value();
  EXPECT_THAT(places(machine, homes), ElementsAre("8-11,24-27", "0-3,16-19", "12-15,28-31", "4-7,20-23"));
  const CpuPlacement placed = place(machine, machine.allowed, homes, 2).value();
  EXPECT_THAT(placed.nodes, ElementsAre(1));
  EXPECT_TRUE(placed.prefers_memory);
}

TEST(PlacementTest, OneNodeIsShared) {
  Tree tree;
  tree.online("0-7").node(0, "0-7");
  for (const char* core : {"0-1", "2-3", "4-5", "6-7"}) tree.core(core);
  const Machine machine = tree.read();
  const auto on = [&](size_t ranks) {
    return homes_of_gpus(machine, std::vector<std::optional<int>>(ranks, 0)).value();
  };
  EXPECT_THAT(places(machine, on(1)), ElementsAre("0-7"));
  EXPECT_THAT(places(machine, on(3)), ElementsAre("0-1", "2-3", "4-7")) << "whole cores";
  EXPECT_THAT(places(machine, on(5)), ElementsAre("0", "1-2", "3", "4-5", "6-7")) << "fewer cores than ranks";
  EXPECT_EQ(places(machine, on(9)), std::vector<std::string>(9, "0-7")) << "fewer CPUs than ranks";
}

// Every CPU belongs to exactly one rank, even if the ranks do not divide the machine evenly.
TEST(PlacementTest, EveryCpuBelongsToOneRank) {
  const Machine machine = two_nodes();
  for (int ranks = 1; ranks <= 16; ++ranks) {
    CpuSet seen;
    size_t count = 0;
    const Homes homes = homes_of_cpu_ranks(machine, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const CpuSet own = place(machine, machine.allowed, homes, rank)->cpus;
      count += own.size();
      seen.insert(own.begin(), own.end());
    }
    EXPECT_EQ(seen, machine.allowed) << ranks;
    EXPECT_EQ(count, machine.allowed.size()) << ranks;
  }
}

TEST(PlacementTest, CpuRanksAreSpreadOverNodes) {
  const Machine machine = two_nodes();
  EXPECT_THAT(homes_of_cpu_ranks(machine, 1), ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(homes_of_cpu_ranks(machine, 3), ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(1)));
  EXPECT_FALSE(place(machine, machine.allowed, homes_of_cpu_ranks(machine, 1), 0)->prefers_memory);
  Machine limited = machine;
  limited.allowed = cpus("10-13");
  EXPECT_THAT(places(limited, homes_of_cpu_ranks(limited, 2)), ElementsAre("10-11", "12-13")) << "node 0 is not ours";
}

TEST(PlacementTest, ControlGroupRestrictsPlacement) {
  Machine machine = two_nodes();
  machine.allowed = cpus("0-3,16-17");
  const Homes homes = homes_of_gpus(machine, {0, 0, 1}).value();
  EXPECT_THAT(places(machine, homes), ElementsAre("0-1,16-17", "2-3", HasSubstr("no CPU of NUMA node 1 may be used")));
}

TEST(PlacementTest, KeepsAnAffinityThatWasSetBefore) {
  const Machine machine = two_nodes();
  const auto refused = place(machine, cpus("0-3"), homes_of_gpus(machine, {0, 1}).value(), 0);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("it was started on CPUs 0-3"));
  EXPECT_TRUE(place(machine, cpus("0-40"), homes_of_gpus(machine, {0, 1}).value(), 0).ok());
}

TEST(PlacementTest, RefusesUnknownNumaNodes) {
  const auto unknown = homes_of_gpus(two_nodes(), {0, std::nullopt});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("GPU 1"));
  const Tree nothing;
  EXPECT_THAT(nothing.read().nodes, IsEmpty());
  EXPECT_EQ(place(nothing.read(), cpus("0-3"), {{}}, 0).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace titan::topology
