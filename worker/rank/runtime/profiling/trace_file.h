#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/rank/trace/spans.h"

namespace titan::runtime {

// The rank to which a trace belongs.
struct TraceOwner {
  int rank = 0;
  int world = 1;
  std::string backend = "gloo";  // Backend of its collectives, "gloo" or "nccl": names that TensorBoard's plugin knows.
};

// Adds work outside the rank's thread (trace::SpanRecorder) to the Chrome trace that LibTorch has written at `path`:
// - collectives and messages, each from issue to result, in separate rows: one per mesh axis, and more if several were
//   in flight at once. They have the names and descriptions that PyTorch gives them ("gloo:all_gather"), so that
//   TensorBoard's plugin draws its distributed view. `args` give axis, ranks, bytes and a breakdown of the time.
// - the work of other threads, one row per thread.
// - the rank, world size and backend, as PyTorch writes them.
// Changes only the end of the file, in place. Unavailable: the file cannot be written or is not as expected.
absl::Status add_to_trace(const std::string& path, const trace::RecordedSpans& recorded, const TraceOwner& owner);

}  // namespace titan::runtime
