#pragma once

#include "common/rank_protocol/launch.h"

namespace titan::rank_protocol {

// What the end of a rank says about what went wrong, the most telling first: ends that name a cause come before those
// that have none, and these before consequences of another rank's end.
enum class ExitKind {
  kBadConfig,
  kUserError,
  kOutOfMemory,
  kStorage,
  kFenced,
  kFailed,    // Any other exit code.
  kKilled,    // By a signal.
  kPeerLost,  // A consequence.
  kAsAsked,   // Finished, or saved and left on request.
};

// `exit_code`: -1 when a signal ended it, whose number `signal` is (0: none). `out_of_memory`: the kernel ended it for
// want of memory.
ExitKind exit_kind(int exit_code, int signal, bool out_of_memory = false);

inline bool left_as_asked(int exit_code, int signal) { return exit_kind(exit_code, signal) == ExitKind::kAsAsked; }

}  // namespace titan::rank_protocol
