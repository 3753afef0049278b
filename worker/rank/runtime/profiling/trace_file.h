#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/rank/trace/spans.h"

namespace titan::runtime {

// Whose trace it is.
struct TraceOwner {
  int rank = 0;
  int world = 1;
  std::string backend = "gloo";  // Of its collectives, or "nccl": the names that TensorBoard's plugin knows.
};

// Adds to the Chrome trace that LibTorch has written at `path` what went on beside the rank's thread (trace::Spans):
// - collectives and messages, each from issue to result, in rows of their own: one a mesh axis, and more where several
//   were under way at once. They are named and described as PyTorch's are ("gloo:all_gather"), so that TensorBoard's
//   plugin draws its distributed view; `args` say axis, ranks, bytes and where the time went.
// - the work of other threads, a row a thread.
// - whose it is, as PyTorch writes it.
// In place, and at the end of the file only. Unavailable when that cannot be written or is not as expected.
absl::Status add_to_trace(const std::string& path, const trace::RecordedSpans& recorded, const TraceOwner& owner);

}  // namespace titan::runtime
