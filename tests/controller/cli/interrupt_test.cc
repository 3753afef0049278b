#include "controller/cli/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "absl/time/clock.h"
#include "common/base/host/signals.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

void wait_for(const Interrupt& interrupt, int count) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (interrupt.count() < count && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  if (interrupt.count() != count) std::_Exit(1);
}

// The first signal counts as an interrupt, whichever it is. After it only Ctrl-C counts: schedulers warn by several
// signals and more than once, while a second Ctrl-C means that the user is in a hurry.
[[noreturn]] void receive_signals(int first) {
  Interrupt::block_signals();
  const Interrupt interrupt([](int) {});
  ::kill(::getpid(), first);
  wait_for(interrupt, 1);
  for (const int number : host::kWarningSignals) ::kill(::getpid(), number);
  ::kill(::getpid(), SIGTERM);
  ::kill(::getpid(), SIGINT);
  wait_for(interrupt, 2);
  ::kill(::getpid(), SIGINT);
  wait_for(interrupt, 3);
  std::_Exit(0);
}

TEST(InterruptTest, SchedulerSignalsCountAsOneInterrupt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // Signals would hit threads of other tests.
  for (const int first : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU})
    EXPECT_EXIT(receive_signals(first), ::testing::ExitedWithCode(0), "") << first;
}

}  // namespace
}  // namespace titan::cli
