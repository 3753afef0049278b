#include "worker/rank/comm/cuda/lost_peer.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "common/rank_protocol/launch.h"

namespace titan::comm {
namespace {

// Throws on a thread that does not catch, as NCCL's watchdog does.
template <typename Throw>
void die_on_a_thread(Throw&& die) {
  report_lost_peers();
  report_lost_peers();  // A second call changes nothing.
  std::thread(std::forward<Throw>(die)).join();
}

// Waits until a thread of this process sleeps; false if it does not within 20 s.
bool falls_asleep(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/syscall";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < deadline) {
    long call = -1;
    std::ifstream(path) >> call;  // The file holds "running" while the thread is outside of system calls.
    if (call == SYS_clock_nanosleep || call == SYS_nanosleep) return true;
    std::this_thread::yield();
  }
  return false;
}

// An aborted communicator means that the peer failed: the exit code says so, and the log has one line.
TEST(LostPeerDeathTest, ExitsWithThePeerLostCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(die_on_a_thread([] { C10_THROW_ERROR(DistBackendError, "NCCL communicator was aborted\nadvice"); }),
              ::testing::ExitedWithCode(rank_protocol::kExitPeerLost),
              "^titan-rank: PEER_LOST: NCCL communicator was aborted\n$");
}

// The recordings are written before the process ends.
TEST(LostPeerDeathTest, CallbackRunsBeforeTheExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      die_on_a_thread([] {
        before_lost_peer_ends([](const std::string& words) { std::fprintf(stderr, "recorded %s\n", words.c_str()); });
        C10_THROW_ERROR(DistBackendError, "NCCL communicator was aborted");
      }),
      ::testing::ExitedWithCode(rank_protocol::kExitPeerLost),
      "^recorded NCCL communicator was aborted\ntitan-rank: PEER_LOST: NCCL communicator was aborted\n$");
}

// A fault of this rank's own device also surfaces in the watchdog, and must not be blamed on a peer.
TEST(LostPeerDeathTest, OwnDeviceFaultIsNotPeerLost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      die_on_a_thread([] { C10_THROW_ERROR(DistBackendError, "watchdog: CUDA error: an illegal memory access"); }),
      ::testing::ExitedWithCode(rank_protocol::kExitInternal), "titan-rank: DEVICE: watchdog: CUDA error");
}

// A rank that breaks its groups on purpose already knows its exit code; the watchdog must not replace it.
TEST(LostPeerDeathTest, OwnExitWinsOverTheWatchdog) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [] {
    report_lost_peers();
    expect_broken_groups();
    std::atomic<pid_t> dying{0};
    std::thread watchdog([&] {
      dying = gettid();
      C10_THROW_ERROR(DistBackendError, "NCCL communicator was aborted");
    });
    while (dying == 0) std::this_thread::yield();
    if (!falls_asleep(dying)) std::_Exit(rank_protocol::kExitInternal);
    std::_Exit(rank_protocol::kExitUserError);
  };
  EXPECT_EXIT(leave(), ::testing::ExitedWithCode(rank_protocol::kExitUserError), "^$");
}

TEST(LostPeerDeathTest, OtherExceptionsStillAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(die_on_a_thread([] { throw std::runtime_error("something else"); }), ::testing::KilledBySignal(SIGABRT),
              "something else");
}

}  // namespace
}  // namespace titan::comm
