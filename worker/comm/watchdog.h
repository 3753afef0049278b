#pragma once

namespace titan::comm {

// This rank has failed and is about to leave with a reason of its own. From now on NCCL's watchdog threads do not end
// the process before it has (cuda/lost_peer.h). Does nothing where CUDA's half of this library is not loaded.
void hold_watchdogs();

// What the CUDA shared object exports for it.
using HoldWatchdogs = void (*)();
inline constexpr char kHoldWatchdogsSymbol[] = "titan_expect_broken_groups";

}  // namespace titan::comm
