#include "controller/cli/suggest.h"

#include "common/models/nearest.h"

namespace titan::cli {

std::string did_you_mean(const std::string& typed, const std::vector<std::string>& candidates) {
  const std::string best = models::nearest(typed, candidates);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace titan::cli
