#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <utility>
#include <vector>

#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/comm/make_device.h"

extern char** environ;

namespace titan::testing {

inline constexpr char kPeerStore[] = "TITAN_TEST_PEER_STORE";
inline constexpr char kPeerActs[] = "TITAN_TEST_PEER_ACTS";

// One of two ranks that are separate processes.
struct PairedRank {
  PairedRank(int rank, const std::string& path) : store(c10::make_intrusive<c10d::FileStore>(path, 2)) {
    mesh = std::make_unique<comm::DeviceMesh>(mesh::Mesh::create({}, 2).value(), std::set{mesh::Axis::kFsdp}, *device,
                                              ledger, comm::DeviceMeshOptions{.rank = rank, .store = store});
    group().barrier();
  }
  const comm::Group& group() const { return mesh->group(mesh::Axis::kFsdp); }

  // Signals go through the store, not through the ranks' groups.
  void set_signal(const std::string& word) const { store->set(word, ""); }
  void wait_for_signal(const std::string& word) const { store->wait({word}); }

  const c10::intrusive_ptr<c10d::Store> store;
  const std::unique_ptr<device::Device> device = comm::make_cpu_device();
  comm::Ledger ledger;
  std::unique_ptr<comm::DeviceMesh> mesh;
};

// Joins as rank 1, in the disabled test that PeerProcessTest::meet() names; peer_acts() is the action given to it.
inline PairedRank join_as_peer() { return {1, std::getenv(kPeerStore)}; }
inline int peer_acts() { return std::atoi(std::getenv(kPeerActs)); }

// Tests of a rank's errors when the other one, a separate process, ends or stops.
class PeerProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/titan-shared-memory-XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override {
    if (peer_ > 0) end_peer();
    std::filesystem::remove_all(folder_);
  }

  // Makes this process rank 0, and starts this program again as rank 1 with `test` as its only test.
  const comm::Group& meet(const std::string& test, int acts) {
    const std::string store = folder_ + "/store";
    setenv(kPeerStore, store.c_str(), 1);
    setenv(kPeerActs, std::to_string(acts).c_str(), 1);
    std::vector<std::string> words{"/proc/self/exe", "--gtest_filter=" + test, "--gtest_also_run_disabled_tests",
                                   "--gtest_output="};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    EXPECT_EQ(posix_spawn(&peer_, "/proc/self/exe", &quiet, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&quiet);
    self_ = std::make_unique<PairedRank>(0, store);
    return self_->group();
  }

  const PairedRank& self() const { return *self_; }
  void stop_peer() const { kill(peer_, SIGSTOP); }
  void end_peer() {
    kill(peer_, SIGKILL);
    wait_for_peer();
  }
  void wait_for_peer() { waitpid(std::exchange(peer_, 0), nullptr, 0); }

  // Returns the message of the PeerLost that the wait throws.
  static std::string error_of(comm::Pending pending) {
    try {
      pending.wait();
    } catch (const comm::PeerLost& lost) {
      return lost.what();
    }
    return "nothing";
  }

 private:
  pid_t peer_ = 0;
  std::string folder_;
  std::unique_ptr<PairedRank> self_;
};

}  // namespace titan::testing
