#pragma once

#include <functional>
#include <string>

namespace titan::comm {

// A collective whose peer is gone fails on NCCL's watchdog thread, while the rank's own thread waits for the device: an
// exception that nobody catches there, which would end the process by SIGABRT, as if this rank were to blame. From now
// on such an end is exit code kExitPeerLost with one line on stderr; an error of the device itself is kExitInternal.
// Other uncaught exceptions go where they went before.
void report_lost_peers();

// This rank breaks its groups itself, because it or another one has failed: it is about to leave with a reason of its
// own, and what the watchdog makes of broken groups must not be faster.
void expect_broken_groups();

// What is called before the process ends for a lost peer.
void before_lost_peer_ends(std::function<void(const std::string& words)> call);

}  // namespace titan::comm
