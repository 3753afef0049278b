#include "worker/rank/data/tokens/token_shard.h"

#include "common/base/status/status.h"

namespace titan::data {

absl::StatusOr<int64_t> document_of(TokenShard& shard, int64_t token) {
  int64_t low = 0, high = shard.documents();  // The answer is in [low, high).
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    TITAN_ASSIGN_OR_RETURN(const int64_t begin, shard.document_begin(middle));
    (begin <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace titan::data
