#pragma once

// Callbacks that run before a Gloo or NCCL thread ends the process, and a delay of NCCL's watchdogs while a rank exits.

#include <functional>
#include <string>

namespace titan::comm {

// When ranks bring different sizes to a collective over sockets, a Gloo thread receives a message that is longer than
// its buffer and throws an exception that nobody catches. The process would end with SIGABRT and without a message.
// `call` runs first, on that thread, with a text for which is_disagreement() in group.h holds. It may end the process;
// another thread that would end the process meanwhile waits for it. Other uncaught exceptions go to the previous
// handler. There is one callback per process.
void before_gloo_aborts(std::function<void(const std::string& words)> call);

// Call this when the rank has failed and is about to exit with its own reason: NCCL's watchdog threads then do not end
// the process first (cuda/lost_peer.h). Does nothing if this library's CUDA part is not loaded.
void hold_watchdogs();

// Sets a callback that runs before a watchdog thread ends the process because a collective timed out or a peer is gone.
// It must return soon.
void before_watchdogs_end(std::function<void(const std::string& words)> call);

// Functions that the CUDA shared object exports for this.
using HoldWatchdogs = void (*)();
inline constexpr char kHoldWatchdogsSymbol[] = "titan_expect_broken_groups";
using BeforeWatchdogsEnd = void (*)(std::function<void(const std::string& words)> call);
inline constexpr char kBeforeWatchdogsEndSymbol[] = "titan_before_watchdogs_end";

}  // namespace titan::comm
