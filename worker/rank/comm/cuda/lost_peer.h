#pragma once

#include <functional>
#include <string>

namespace titan::comm {

// When a peer is gone, a collective fails on NCCL's watchdog thread while the rank's thread waits for the device.
// Nobody catches the exception, so the process would end with SIGABRT, as if this rank were at fault. After this call
// such an end has exit code kExitPeerLost and prints one line to stderr; an error of the device itself gives
// kExitInternal. Other uncaught exceptions go to the previous handler.
void report_lost_peers();

// Call this before the rank breaks its groups itself, because it or another rank has failed. The watchdog then waits
// 20 seconds, so that the rank can exit with its own reason.
void expect_broken_groups();

// Sets a callback that runs before the process ends because of a lost peer.
void before_lost_peer_ends(std::function<void(const std::string& words)> call);

}  // namespace titan::comm
