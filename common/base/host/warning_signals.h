#pragma once

#include <csignal>

namespace titan::host {

// How other schedulers warn a job that its time is nearly over, besides SIGTERM: Slurm's --signal and scancel --signal,
// Grid Engine's -notify and soft limits, a terminal or a login that ends. Any of them may go to one process of a job or
// to all. By default each would end a process at once.
inline constexpr int kWarningSignals[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

// Leaves them to another process of the job: the disposition outlives exec. Async-signal-safe.
inline void ignore_warning_signals() {
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  for (const int number : kWarningSignals) ::sigaction(number, &ignored, nullptr);
}

}  // namespace titan::host
