#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "worker/rank/runtime/resources.h"

namespace titan::runtime {
namespace {

using ::testing::HasSubstr;
using topology::CpuSet;

// A machine of two NUMA nodes with two CPUs and a GPU each, and a kernel that records what it is asked to do.
class PinningTest : public ::testing::Test {
 protected:
  PinningTest() {
    file("/sys/devices/system/cpu/online", "0-3");
    file("/sys/devices/system/node/node0/cpulist", "0-1");
    file("/sys/devices/system/node/node1/cpulist", "2-3");
    file("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1");
    file("/sys/bus/pci/devices/0000:5e:00.0/numa_node", "0");
  }

  void file(const std::string& path, const std::string& text) {
    const std::filesystem::path full_path = folder_.path() + path;
    std::filesystem::create_directories(full_path.parent_path());
    std::ofstream(full_path) << text << "\n";
  }

  Placing placing() {
    return {.root = folder_.path(),
            .affinity = [this] { return inherited_; },
            .set_affinity =
                [this](const CpuSet& cpus) {
                  cpus_ = cpus;
                  return affinity_answer_;
                },
            .prefer_memory =
                [this](int node) {
                  memory_ = node;
                  return memory_answer_;
                }};
  }

  const std::vector<std::string> gpus_ = {"0000:3B:00.0", "0000:5E:00.0"};
  rank_protocol::TempFolder folder_;
  CpuSet inherited_ = {0, 1, 2, 3};
  absl::Status affinity_answer_, memory_answer_;
  CpuSet cpus_;
  int memory_ = -1;
};

TEST(PinningKeyTest, TheKeyDecides) {
  const auto wants = [](const char* key, const char* device) {
    config::ResourcesSection resources;
    resources.pin_cpus = key;
    resources.device = device;
    return wants_pinning(resources);
  };
  EXPECT_TRUE(wants("auto", "cuda"));
  EXPECT_FALSE(wants("auto", "cpu"));
  EXPECT_TRUE(wants("on", "cpu"));
  EXPECT_FALSE(wants("off", "cuda"));
}

TEST_F(PinningTest, RankIsPinnedNearItsGpu) {
  const Pinned pinned = pin_rank("auto", 0, 2, gpus_, placing());
  EXPECT_EQ(cpus_, (CpuSet{2, 3}));
  EXPECT_EQ(memory_, 1);
  EXPECT_EQ(pinned.words, "runs on CPUs 2-3 of NUMA node 1 (resources.pin_cpus = auto)");
  EXPECT_EQ(pinned.warning, "");
  pin_rank("auto", 1, 2, gpus_, placing());
  EXPECT_EQ(memory_, 0);
}

TEST_F(PinningTest, CpuRanksAreSpreadOverNumaNodes) {
  pin_rank("on", 2, 4, {}, placing());
  EXPECT_EQ(cpus_, (CpuSet{2}));
  EXPECT_EQ(memory_, 1);
}

// One unknown GPU leaves all ranks unpinned: pinning only half of them would be worse than pinning none.
TEST_F(PinningTest, UnknownGpuLeavesRanksUnpinned) {
  const Pinned not_pinned = pin_rank("auto", 0, 2, {"0000:3B:00.0", "0000:77:00.0"}, placing());
  EXPECT_TRUE(cpus_.empty());
  EXPECT_EQ(memory_, -1);
  EXPECT_THAT(not_pinned.words, HasSubstr("is not bound to CPUs: the kernel does not report"));
  EXPECT_EQ(not_pinned.warning, "") << "pinning was not requested";
  EXPECT_THAT(pin_rank("on", 0, 2, {"0000:3B:00.0", ""}, placing()).warning, HasSubstr("resources.pin_cpus"));
  EXPECT_THAT(pin_rank("on", 1, 2, {"0000:3B:00.0"}, placing()).words, HasSubstr("is not bound"));
}

TEST_F(PinningTest, AChosenAffinityStays) {
  inherited_ = {0, 2};
  EXPECT_THAT(pin_rank("auto", 0, 2, gpus_, placing()).words, HasSubstr("it was started on CPUs 0,2 and stays there"));
  EXPECT_TRUE(cpus_.empty());
}

TEST_F(PinningTest, KernelRefusalIsAWarning) {
  memory_answer_ = absl::PermissionDeniedError("set_mempolicy: Operation not permitted");
  const Pinned pinned = pin_rank("auto", 0, 2, gpus_, placing());
  EXPECT_THAT(pinned.words, HasSubstr("runs on CPUs 2-3"));
  EXPECT_THAT(pinned.warning, HasSubstr("memory of NUMA node 1 cannot be preferred: set_mempolicy"));
  affinity_answer_ = absl::InvalidArgumentError("sched_setaffinity: Invalid argument");
  memory_ = -1;
  EXPECT_THAT(pin_rank("auto", 0, 2, gpus_, placing()).warning, HasSubstr("sched_setaffinity"));
  EXPECT_EQ(memory_, -1);
}

// On the real kernel, in a separate thread: threads that it starts inherit its CPUs, and an impossible request is
// refused.
TEST(LinuxPlacingTest, HelperThreadsInherit) {
  std::thread([] {
    const Placing linux = linux_placing();
    const CpuSet before = linux.affinity();
    ASSERT_FALSE(before.empty());
    const CpuSet one = {*before.rbegin()};
    ASSERT_TRUE(linux.set_affinity(one).ok());
    CpuSet helpers;
    std::thread([&] { helpers = linux.affinity(); }).join();
    EXPECT_EQ(helpers, one);
    EXPECT_FALSE(linux.set_affinity({}).ok());
    EXPECT_FALSE(linux.prefer_memory(1000).ok()) << "no machine here has so many nodes";
  }).join();
}

}  // namespace
}  // namespace titan::runtime
