#include "worker/rank/runtime/step/store_room.h"

#include "absl/strings/str_cat.h"

namespace titan::runtime {

absl::Status room_for_store(int world, int64_t descriptors) {
  constexpr int64_t kConnections = 2, kOwn = 128;
  const int64_t needed = kConnections * world + kOwn;
  if (descriptors == 0 || descriptors >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(  // ResourceExhausted is a disk, where a rank fails.
      absl::StrCat("rank 0 hosts the store of ", world, " ranks and needs ", needed, " open files, but may have ",
                   descriptors,
                   ": raise the hard limit on its node (LimitNOFILE of titan-worker's unit, or ulimit -Hn)"));
}

}  // namespace titan::runtime
