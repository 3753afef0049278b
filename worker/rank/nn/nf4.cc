#include "worker/rank/nn/nf4.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <array>

#include "common/plan/models/adapters.h"
#include "worker/rank/kernels/cpu/nf4.h"
#include "worker/rank/nn/matmul.h"

namespace titan::nn {
namespace {

using kernels::kNf4Numbers;
using models::kNf4Block;

// More rows at a time would only need more memory.
constexpr int64_t kElementsAtOnce = int64_t{1} << 22;

int64_t columns_of(const at::Tensor& packed) { return packed.size(1) / models::nf4_row_bytes(kNf4Block) * kNf4Block; }

// The table is static, so a device can copy it without its host waiting.
at::Tensor numbers_on(at::Device device) {
  const at::Tensor here = at::from_blob(const_cast<float*>(kNf4Numbers.data()), {16}, at::kFloat);
  return here.to(device, at::kFloat, /*non_blocking=*/true);
}

// Returns the midpoints between neighbouring numbers of the table, [15].
at::Tensor borders(at::Device device) {
  std::array<float, 15> middles{};
  for (size_t i = 0; i < middles.size(); ++i) middles[i] = (kNf4Numbers[i] + kNf4Numbers[i + 1]) / 2;
  return at::tensor(at::ArrayRef<float>(middles.data(), middles.size())).to(device);
}

void pack_rows(const at::Tensor& matrix, at::Tensor packed) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const at::Tensor blocks = matrix.to(at::kFloat).reshape({rows, columns / kNf4Block, kNf4Block});
  const at::Tensor scales = blocks.abs().amax(-1);
  const at::Tensor shares = blocks / scales.masked_fill(scales.eq(0), 1).unsqueeze(-1);
  const at::Tensor codes = at::bucketize(shares, borders(matrix.device())).to(at::kByte).view({rows, columns / 2, 2});
  packed.narrow(1, 0, columns / 2).copy_(codes.select(2, 0).bitwise_left_shift(4).bitwise_or_(codes.select(2, 1)));
  packed.narrow(1, columns / 2, columns / kNf4Block * 4).copy_(scales.view(at::kByte));
}

template <typename T>
void unpack_on_cpu(const at::Tensor& packed, T* out, int64_t columns) {
  const auto* bytes = packed.const_data_ptr<uint8_t>();
  const int64_t stride = packed.stride(0);
  at::parallel_for(0, packed.size(0), std::max<int64_t>(1, (1 << 15) / columns), [&](int64_t from, int64_t to) {
    for (int64_t row = from; row < to; ++row) {
      kernels::unpack_nf4_row(bytes + row * stride, columns, kNf4Block, out + row * columns);
    }
  });
}

void unpack_rows(const at::Tensor& packed, const at::Tensor& numbers, at::Tensor out) {
  const int64_t rows = out.size(0), columns = out.size(1);
  const at::Tensor bytes = packed.narrow(1, 0, columns / 2);
  const at::Tensor codes = at::stack({bytes.bitwise_right_shift(4), bytes.bitwise_and(15)}, -1);
  const at::Tensor shares = numbers.index_select(0, codes.view({-1}).to(at::kInt));
  const at::Tensor scales = packed.narrow(1, columns / 2, columns / kNf4Block * 4).contiguous().view(at::kFloat);
  out.copy_((shares.view({rows, columns / kNf4Block, kNf4Block}) * scales.unsqueeze(-1)).view({rows, columns}));
}

class Nf4Products final : public MatmulRecipe {
 public:
  Operand of_input(const at::Tensor& x) const override { return {x, {}}; }
  Operand of_weight(const at::Tensor& weight) const override { return {weight, {}}; }
  Operand of_gradient(const at::Tensor& dy) const override { return {dy, {}}; }

  at::Tensor matmul_nt(const Operand& x, const Operand& weight) const override {
    return nn::matmul_nt(x.values, nf4_unpack(weight.values, x.values.scalar_type()));
  }
  void add_matmul_nn(at::Tensor& sum, const Operand& dy, const Operand& weight) const override {
    nn::add_matmul_nn(sum, dy.values, nf4_unpack(weight.values, dy.values.scalar_type()));
  }
  at::Tensor weight_gradient(const Operand& /*dy*/, const Operand& /*x*/) const override { return not_trained(); }

  at::Tensor grouped_matmul_nt(const Operand& /*x*/, const Operand& /*weights*/,
                               const RowGroups& /*groups*/) const override {
    return of_experts();
  }
  at::Tensor grouped_matmul_nn(const Operand& /*dy*/, const Operand& /*weights*/,
                               const RowGroups& /*groups*/) const override {
    return of_experts();
  }
  at::Tensor grouped_weight_gradient(const Operand& /*dy*/, const Operand& /*x*/,
                                     const RowGroups& /*groups*/) const override {
    return not_trained();
  }

 private:
  static at::Tensor not_trained() { TORCH_CHECK(false, "4-bit weights have no gradient"); }
  static at::Tensor of_experts() { TORCH_CHECK(false, "4-bit weights are not supported for routed experts"); }
};

}  // namespace

void nf4_pack(const at::Tensor& matrix, at::Tensor packed) {
  const int64_t columns = matrix.size(1);
  TORCH_CHECK(columns % kNf4Block == 0 && packed.scalar_type() == at::kByte &&
                  packed.sizes() == at::IntArrayRef({matrix.size(0), models::nf4_row_bytes(columns)}),
              "4-bit packing needs columns in multiples of 64 and a uint8 tensor of the packed size, got a matrix of ",
              matrix.sizes(), " and a packed tensor of ", packed.sizes());
  const int64_t step = std::max<int64_t>(1, kElementsAtOnce / columns);
  for (int64_t first = 0; first < matrix.size(0); first += step) {
    const int64_t rows = std::min(step, matrix.size(0) - first);
    pack_rows(matrix.narrow(0, first, rows), packed.narrow(0, first, rows));
  }
}

at::Tensor nf4_unpack(const at::Tensor& packed, at::ScalarType type) {
  const int64_t columns = columns_of(packed);
  at::Tensor out = at::empty({packed.size(0), columns}, packed.options().dtype(type));
  if (packed.is_cpu()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, type, "nf4_unpack",
                                    [&] { unpack_on_cpu(packed, out.mutable_data_ptr<scalar_t>(), columns); });
    return out;
  }
  const at::Tensor numbers = numbers_on(packed.device());
  const int64_t step = std::max<int64_t>(1, kElementsAtOnce / columns);
  for (int64_t first = 0; first < packed.size(0); first += step) {
    const int64_t rows = std::min(step, packed.size(0) - first);
    unpack_rows(packed.narrow(0, first, rows), numbers, out.narrow(0, first, rows));
  }
  return out;
}

const MatmulRecipe& nf4_matmul_recipe() {
  static const Nf4Products recipe;
  return recipe;
}

}  // namespace titan::nn
