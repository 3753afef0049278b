#pragma once

#include <signal.h>

#include <string>

namespace titan::host {

// SIGTERM and SIGINT end a daemon in order. SIGHUP, SIGUSR1 and SIGUSR2 do not: a closed terminal, a rotated log and a
// batch system send them, and a daemon that they ended would leave without a word. Titan's daemons have nothing to
// reload: certificates are read again by themselves. Nor do SIGALRM, SIGVTALRM, SIGPROF and SIGXCPU, which somebody's
// timers and limits send.

// Blocks these signals in the calling thread and in all that it starts from now on; one thread then takes them. Ignores
// SIGXFSZ: a write beyond the limit on files fails with EFBIG.
void block_daemon_signals();
sigset_t daemon_signals();

bool ends_daemon(int signal);

// For the log, of a signal that does not end the daemon: "SIGHUP: there is nothing to reload; going on".
std::string going_on(int signal);

}  // namespace titan::host
