#pragma once

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/testing/draw.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::testing {

// A product [rows, in] to [rows, out] of rows in groups. With `one_call` it gets the groups' ends.
struct GroupedCase {
  std::vector<int64_t> rows;
  bool one_call = false;
  int64_t in = 0, out = 0;

  int64_t total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
  int64_t groups() const { return static_cast<int64_t>(rows.size()); }
  nn::RowGroups groups_of(const at::Tensor& x, bool with_members) const {
    return one_call ? nn::group_rows(rows, x, with_members) : nn::RowGroups{.rows = rows};
  }
  std::string name(int64_t group) const {
    return "group " + std::to_string(group) + ", " + std::to_string(in) + " to " + std::to_string(out) +
           (one_call ? ", in one call" : "");
  }
};

// Runs `body` with few and many groups, empty groups, widths that are multiples of 16 bytes or not, and all kernels of
// this machine.
inline void for_each_grouped_case(unsigned seed, const std::function<void(const GroupedCase&)>& body) {
  kernels::testing::with_every_choice([&] {
    at::manual_seed(seed);
    Draw pick(seed);
    for (const std::vector<int64_t>& rows :
         {std::vector<int64_t>{5, 0, 33, 1}, {0, 0}, {64}, {0, 1}, {1, 2, 3, 4, 5, 6, 7, 8}}) {
      for (const bool one_call : {true, false}) {
        const int64_t in = pick({8, 24, 36}), out = pick({16, 40, 27});
        body({rows, one_call, in, out});
      }
    }
  });
}

}  // namespace titan::testing
