#include "worker/rank/model/encoders/int8_rows.h"

#include <c10/util/Exception.h>

#include <limits>

#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/matmul.h"

namespace titan::encoders {
namespace {

constexpr int64_t kScaleBytes = 4;
constexpr double kLargest = 127;

int64_t padded(int64_t columns) { return (columns + kScaleBytes - 1) / kScaleBytes * kScaleBytes; }

class Int8Products final : public nn::MatmulRecipe {
 public:
  nn::Operand of_input(const at::Tensor& x) const override { return {x, {}}; }
  nn::Operand of_weight(const at::Tensor& weight) const override { return {weight, {}}; }
  nn::Operand of_gradient(const at::Tensor& dy) const override { return {dy, {}}; }

  at::Tensor matmul_nt(const nn::Operand& x, const nn::Operand& weight) const override {
    const at::ScalarType type = x.values.scalar_type();
    const int64_t columns = x.values.size(-1);
    const at::Tensor& packed = weight.values;
    const at::Tensor integers = packed.narrow(1, 0, columns).view(at::kChar).to(type);
    const at::Tensor scales = packed.narrow(1, padded(columns), kScaleBytes).contiguous().view(at::kFloat).flatten();
    at::Tensor sums = nn::matmul_nt(x.values, integers, nn::accumulate_type(type));
    return sums.mul_(scales).to(type);
  }
  void add_matmul_nn(at::Tensor& /*sum*/, const nn::Operand& /*dy*/, const nn::Operand& /*weight*/) const override {
    no_backward();
  }
  at::Tensor weight_gradient(const nn::Operand& /*dy*/, const nn::Operand& /*x*/) const override {
    return no_backward();
  }
  at::Tensor grouped_matmul_nt(const nn::Operand& /*x*/, const nn::Operand& /*weights*/,
                               const nn::RowGroups& /*groups*/) const override {
    TORCH_CHECK(false, "weights in rows of int8 are not supported for routed experts");
  }
  at::Tensor grouped_matmul_nn(const nn::Operand& /*dy*/, const nn::Operand& /*weights*/,
                               const nn::RowGroups& /*groups*/) const override {
    return no_backward();
  }
  at::Tensor grouped_weight_gradient(const nn::Operand& /*dy*/, const nn::Operand& /*x*/,
                                     const nn::RowGroups& /*groups*/) const override {
    return no_backward();
  }

 private:
  static at::Tensor no_backward() { TORCH_CHECK(false, "weights in rows of int8 have no backward pass"); }
};

}  // namespace

int64_t int8_row_bytes(int64_t columns) { return padded(columns) + kScaleBytes; }

at::Tensor int8_pack(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const at::Tensor numbers = matrix.to(at::kFloat);
  at::Tensor scales = numbers.abs().amax(/*dim=*/1, /*keepdim=*/true) / kLargest;
  scales = at::where(scales.isfinite(), scales, std::numeric_limits<float>::quiet_NaN());
  const at::Tensor shares = at::nan_to_num(numbers / scales.masked_fill(scales.eq(0), 1), 0.0, 0.0, 0.0);
  at::Tensor packed = at::zeros({rows, int8_row_bytes(columns)}, matrix.options().dtype(at::kByte));
  packed.narrow(1, 0, columns).copy_(shares.round_().to(at::kChar).view(at::kByte));
  packed.narrow(1, padded(columns), kScaleBytes).copy_(scales.contiguous().view(at::kByte));
  return packed;
}

const nn::MatmulRecipe& int8_matmul_recipe() {
  static const Int8Products recipe;
  return recipe;
}

}  // namespace titan::encoders
