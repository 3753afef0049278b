#pragma once

#include <functional>
#include <string>

namespace titan::comm {

// This rank has failed and is about to leave with a reason of its own. From now on NCCL's watchdog threads do not end
// the process before it has (cuda/lost_peer.h). Does nothing where CUDA's half of this library is not loaded.
void hold_watchdogs();

// From now on a watchdog thread that ends the process because a collective timed out or a peer is gone calls this
// before. It must return soon.
void before_watchdogs_end(std::function<void(const std::string& words)> call);

// What the CUDA shared object exports for them.
using HoldWatchdogs = void (*)();
inline constexpr char kHoldWatchdogsSymbol[] = "titan_expect_broken_groups";
using BeforeWatchdogsEnd = void (*)(std::function<void(const std::string& words)> call);
inline constexpr char kBeforeWatchdogsEndSymbol[] = "titan_before_watchdogs_end";

}  // namespace titan::comm
