#include "worker/rank/kernels/cpu/expert_rows.h"

#include <algorithm>
#include <vector>

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

bool accepted(const GatherRows&) { return true; }
bool accepted(const SumRows&) { return true; }
bool accepted(const SumRowsBackward& args) { return args.weights != nullptr || args.dx == nullptr; }

}  // namespace

TITAN_ROW_OP(gather_rows, GatherRows);
TITAN_ROW_OP(sum_rows, SumRows);
TITAN_ROW_OP(sum_rows_backward, SumRowsBackward);

bool order_rows(const OrderRows& a) {
  const int64_t rows = a.tokens * a.choices;
  if (!std::all_of(a.chosen, a.chosen + rows, [&](int64_t e) { return e >= 0 && e < a.experts; })) return false;
  std::vector<int64_t> next(a.experts + 1);  // Position of each expert's next row.
  for (int64_t row = 0; row < rows; ++row) ++next[a.chosen[row] + 1];
  for (int64_t expert = 0; expert < a.experts; ++expert) next[expert + 1] += next[expert];
  for (int64_t token = 0, row = 0; token < a.tokens; ++token) {
    for (int64_t choice = 0; choice < a.choices; ++choice, ++row) {
      const int64_t place = next[a.chosen[row]]++;
      a.rows[place] = row;
      a.row_tokens[place] = token;
      a.places[row] = place;
    }
  }
  return true;
}

}  // namespace titan::kernels
