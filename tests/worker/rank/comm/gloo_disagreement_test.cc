// Tests that an error found by Gloo's own thread is reported before it ends the process.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/comm/backend_aborts.h"

namespace titan::comm {
namespace {

using mesh::Axis;

void report_and_exit(const std::string& words) {
  std::fprintf(stderr, "found: %s %s\n", is_disagreement(words) ? "disagreement" : "something else", words.c_str());
  std::_Exit(7);
}

void report_during_terminate(const std::string& words) {
  std::thread([] { throw std::runtime_error("another error"); }).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // Time enough to end the process, if it could.
  report_and_exit(words);
}

// Makes rank 1 pass another size to an all-reduce over sockets.
void pass_different_size(void (*callback)(const std::string&) = report_and_exit) {
  before_gloo_aborts([](const std::string&) { std::abort(); });
  before_gloo_aborts(callback);  // The last one counts.
  testing::run_ranks(
      {}, 2, {Axis::kFsdp},
      [](testing::ThreadRank& self) {
        self.mesh->group(Axis::kFsdp).all_reduce(at::ones({64 + self.rank}));
        self.mesh->group(Axis::kFsdp).barrier();
      },
      testing::Via::kGloo);
}

TEST(GlooDisagreementDeathTest, ReportsADifferentSizeBeforeTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(pass_different_size(), ::testing::ExitedWithCode(7), "found: disagreement another rank sends more than");
}

// Both sides may find a message too long, each on its own thread: the first report still completes.
TEST(GlooDisagreementDeathTest, FirstReportCompletesBeforeOthersAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(pass_different_size(report_during_terminate), ::testing::ExitedWithCode(7), "found: disagreement");
}

// Exceptions of other code are not changed.
TEST(GlooDisagreementDeathTest, OtherExceptionsStillAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        before_gloo_aborts(report_and_exit);
        std::thread([] { throw std::runtime_error("op.preamble of other code"); }).join();
      },
      ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace titan::comm
