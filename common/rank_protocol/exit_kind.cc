#include "common/rank_protocol/exit_kind.h"

namespace titan::rank_protocol {

ExitKind exit_kind(int exit_code, int signal, bool out_of_memory) {
  if (out_of_memory) return ExitKind::kOutOfMemory;
  if (signal != 0) return ExitKind::kKilled;
  switch (exit_code) {
    case kExitBadConfig:
    case kExitUsage:
      return ExitKind::kBadConfig;
    case kExitUserError:
      return ExitKind::kUserError;
    case kExitOutOfMemory:
      return ExitKind::kOutOfMemory;
    case kExitStorage:
      return ExitKind::kStorage;
    case kExitFenced:
      return ExitKind::kFenced;
    case kExitPeerLost:
      return ExitKind::kPeerLost;
    case kExitFinished:
    case kExitStopped:
      return ExitKind::kAsAsked;
    default:
      return ExitKind::kFailed;
  }
}

}  // namespace titan::rank_protocol
