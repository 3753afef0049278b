#pragma once

// Defines which signals end a daemon and which ones only warn a job, and blocks or ignores them.

#include <signal.h>

#include <csignal>
#include <string>

namespace titan::host {

// Returns the signals that a daemon handles: those that end it, and those that would end it by default.
sigset_t daemon_signals();

// Blocks these signals in the calling thread and in all threads that it starts later; one thread then receives them.
// Ignores SIGXFSZ, so that a write beyond the file size limit fails with EFBIG.
void block_daemon_signals();

// Whether the signal makes a daemon shut down cleanly: SIGTERM and SIGINT do. SIGHUP, SIGUSR1 and SIGUSR2 do not,
// because closed terminals, log rotation and batch systems send them, and the daemon would end without a reason in its
// log. Titan's daemons have nothing to reload: they notice changed certificates themselves. SIGALRM, SIGVTALRM, SIGPROF
// and SIGXCPU, which timers and limits send, do not end a daemon either.
bool ends_daemon(int signal);

// Returns the log message for a signal that does not end the daemon, such as "SIGHUP: there is nothing to reload;
// continuing".
std::string ignored_signal_message(int signal);

// Signals, besides SIGTERM, by which other schedulers warn a job that its time is nearly over: Slurm's --signal and
// scancel --signal, Grid Engine's -notify and soft limits, and a terminal or login that ends. Any of them may reach one
// process of a job or all. By default each ends a process at once.
inline constexpr int kWarningSignals[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

// Ignores the warning signals, so that another process of the job handles them: the disposition survives exec.
// Async-signal-safe.
inline void ignore_warning_signals() {
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  for (const int number : kWarningSignals) ::sigaction(number, &ignored, nullptr);
}

}  // namespace titan::host
