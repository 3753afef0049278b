#include "worker/tools/pieces.h"

#include <algorithm>

namespace titan::tools {

std::vector<checkpoint::Box> pieces_of(const std::vector<int64_t>& shape, int64_t item_bytes, int64_t bytes) {
  const checkpoint::Box all = checkpoint::whole(shape);
  if (shape.empty() || shape[0] == 0) return {all};
  const int64_t step = std::max<int64_t>(1, bytes / std::max<int64_t>(1, all.elements() / shape[0] * item_bytes));
  std::vector<checkpoint::Box> pieces;
  for (int64_t first = 0; first < shape[0]; first += step) {
    pieces.push_back(all);
    pieces.back().offset[0] = first;
    pieces.back().shape[0] = std::min(step, shape[0] - first);
  }
  return pieces;
}

}  // namespace titan::tools
