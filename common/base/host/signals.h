#pragma once

// Defines which signals end a daemon and which ones only warn a job, and blocks or ignores them.

#include <signal.h>

#include <csignal>
#include <string>

namespace titan::host {

// The signals that a daemon handles: those that end it, and those that would otherwise end it by default.
sigset_t daemon_signals();

// Blocks these signals in the calling thread and in all that it starts from now on; one thread then takes them. Ignores
// SIGXFSZ: a write beyond the limit on files fails with EFBIG.
void block_daemon_signals();

// SIGTERM and SIGINT end a daemon in order. SIGHUP, SIGUSR1 and SIGUSR2 do not: a closed terminal, a rotated log and a
// batch system send them, and a daemon that they ended would leave without a word. Titan's daemons have nothing to
// reload: they read changed certificates by themselves. SIGALRM, SIGVTALRM, SIGPROF and SIGXCPU, which timers and
// limits send, do not end it either.
bool ends_daemon(int signal);

// For the log, of a signal that does not end the daemon: "SIGHUP: there is nothing to reload; going on".
std::string going_on(int signal);

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
