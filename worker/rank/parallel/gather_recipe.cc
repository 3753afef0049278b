#include "worker/rank/parallel/gather_recipe.h"

namespace titan::parallel {
namespace {

class GatherCast final : public GatherRecipe {
 public:
  at::ScalarType type(const Precision& precision) const override { return precision.param; }
  void pack(const at::Tensor& master, const std::vector<ShardedParameter>& /*parameters*/,
            at::Tensor& piece) const override {
    piece.copy_(master);
  }
  at::Tensor scales(const nn::Parameter& /*parameter*/) const override { return {}; }
};

}  // namespace

const GatherRecipe& gather_cast() {
  static const GatherCast recipe;
  return recipe;
}

}  // namespace titan::parallel
