#include "common/base/host/signals.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace titan::host {

sigset_t daemon_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU})
    sigaddset(&signals, signal);
  return signals;
}

void block_daemon_signals() {
  const sigset_t signals = daemon_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);  // Not logged: at the size limit, the log line itself would raise the signal again.
}

bool ends_daemon(int signal) { return signal == SIGTERM || signal == SIGINT; }

std::string ignored_signal_message(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  const bool is_timer = signal == SIGALRM || signal == SIGVTALRM || signal == SIGPROF || signal == SIGXCPU;
  return absl::StrCat(
      "SIG", name == nullptr ? "?" : name,
      is_timer ? ": timers and limits are ignored; continuing" : ": there is nothing to reload; continuing");
}

}  // namespace titan::host
