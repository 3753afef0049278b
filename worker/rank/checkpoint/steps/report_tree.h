#pragma once

// Who joins whose reports, so that no rank reads more than a few however many there are.

#include <vector>

namespace titan::checkpoint {

inline constexpr int kFanOut = 32;

// Ranks [begin, end), of which the first speaks for all.
struct Branch {
  int begin = 0;
  int end = 1;
  bool operator==(const Branch&) const = default;
};

// The branches of neighbouring ranks that follow the first one, `fan_out` at most and about equally large.
std::vector<Branch> branches(const Branch& of, int fan_out);

// The branch for which `rank` speaks, in a tree with rank 0 at its root.
Branch branch_of(int rank, int world, int fan_out);

// How many reports follow each other on the longest way to the branch's first rank.
int height(const Branch& branch, int fan_out);

}  // namespace titan::checkpoint
