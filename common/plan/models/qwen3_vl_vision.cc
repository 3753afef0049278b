#include "common/plan/models/qwen3_vl_vision.h"

#include "absl/strings/str_cat.h"
#include "common/plan/models/number_checks.h"

namespace titan::models {
namespace {

std::string bad_deepstack(const Qwen3VlVisionSpec& spec) {
  int64_t least = 0;
  for (const int64_t layer : spec.deepstack_layers) {
    if (layer < least || layer >= spec.n_layers)
      return absl::StrCat("deepstack_layers: ", layer, " is not an ascending layer below n_layers ", spec.n_layers);
    least = layer + 1;
  }
  return "";
}

}  // namespace

std::string inconsistency(const Qwen3VlVisionSpec& spec) {
  const std::string wrong = not_above_zero({{"dim", spec.dim},
                                            {"ffn_hidden", spec.ffn_hidden},
                                            {"n_layers", spec.n_layers},
                                            {"n_heads", spec.n_heads},
                                            {"channels", spec.channels},
                                            {"patch_size", spec.patch_size},
                                            {"merge", spec.merge},
                                            {"out_dim", spec.out_dim},
                                            {"temporal_patch_size", spec.temporal_patch_size},
                                            {"position_side", spec.position_side}});
  if (!wrong.empty()) return wrong;
  if (spec.dim % spec.n_heads != 0) return absl::StrCat("n_heads: ", spec.n_heads, " does not divide dim ", spec.dim);
  if (spec.head_dim() % 4 != 0)
    return absl::StrCat("n_heads: heads of ", spec.head_dim(), " numbers cannot be rotated by row and column");
  if (spec.out_dim % (spec.merge * spec.merge) != 0)
    return absl::StrCat("out_dim: ", spec.out_dim, " is not a multiple of merge ", spec.merge, " squared");
  return bad_deepstack(spec);
}

}  // namespace titan::models
