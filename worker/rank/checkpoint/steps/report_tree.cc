#include "worker/rank/checkpoint/steps/report_tree.h"

#include <algorithm>

namespace titan::checkpoint {

std::vector<Branch> branches(const Branch& of, int fan_out) {
  const int ranks = of.end - of.begin - 1, parts = std::min(ranks, fan_out);
  std::vector<Branch> all;
  int begin = of.begin + 1;
  for (int i = 0; i < parts; ++i) {
    const int end = begin + ranks / parts + (i < ranks % parts ? 1 : 0);
    all.push_back({begin, end});
    begin = end;
  }
  return all;
}

Branch branch_of(int rank, int world, int fan_out) {
  Branch branch{0, world};
  while (branch.begin != rank) {
    for (const Branch& one : branches(branch, fan_out)) {
      if (rank >= one.begin && rank < one.end) {
        branch = one;
        break;
      }
    }
  }
  return branch;
}

int height(const Branch& branch, int fan_out) {
  const std::vector<Branch> below = branches(branch, fan_out);
  return below.empty() ? 0 : 1 + height(below.front(), fan_out);  // The first is of the largest.
}

}  // namespace titan::checkpoint
