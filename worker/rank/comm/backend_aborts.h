#pragma once

// Calls back before a thread of Gloo's or NCCL's ends the process, and holds NCCL's watchdogs while a rank leaves.

#include <functional>
#include <string>

namespace titan::comm {

// Where ranks bring different sizes to a collective over sockets, it is Gloo's own thread that finds a message too long
// for what waits for it: an exception that nobody catches there, which ends the process by SIGABRT and says nothing to
// anybody. From now on `call` is called before, on that thread, with words that say so (is_disagreement() in group.h
// holds for them). It may end the process, and is waited for when another thread would end it meanwhile; other uncaught
// exceptions go where they went before. One call a process.
void before_gloo_aborts(std::function<void(const std::string& words)> call);

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
