#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace titan::comm {

// "ranks 2, 3"; long lists are cut.
inline std::string listed(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += ", ... " + std::to_string(ranks.back());
  return text;
}

}  // namespace titan::comm
