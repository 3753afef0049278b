#include "worker/rank/nn/low_precision/scaled_mm.h"

#include <ATen/ops/_scaled_grouped_mm.h>
#include <ATen/ops/_scaled_mm.h>

#include <utility>

#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/float8_kernels.h"
#include "worker/rank/nn/low_precision/recipes.h"

namespace titan::nn {
namespace {

// cuBLAS requires rows of eight-bit matrices to begin at multiples of 16 bytes.
constexpr int64_t kAlignment = 16;

int64_t missing_to(int64_t size, int64_t multiple) { return (multiple - size % multiple) % multiple; }

at::Tensor in_rows(const at::Tensor& values) {
  if (values.is_contiguous()) return values;
  at::Tensor turned = on_device::by_rows(values);
  return turned.defined() ? turned : values.contiguous();
}

// Pads [rows, k] with zeros, row-major in memory. Zeros have the same bits in every type.
at::Tensor filled_up(const at::Tensor& values, int64_t row_multiple, int64_t column_multiple) {
  const int64_t rows = missing_to(values.size(0), row_multiple), columns = missing_to(values.size(1), column_multiple);
  if (rows == 0 && columns == 0) return in_rows(values);
  return at::constant_pad_nd(values.view(at::kByte), {0, columns, 0, rows}).view(values.scalar_type());
}

at::Tensor filled_up(const at::Tensor& scales, int64_t rows) {
  return scales.dim() == 0 || scales.size(0) == rows
             ? scales
             : at::constant_pad_nd(scales, {0, 0, 0, rows - scales.size(0)}, /*value=*/1);
}

// Multiplies eight-bit operands whose rows are padded for _scaled_mm. Meta tensors give only the shape.
at::Tensor product_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales, const at::Tensor& b_scales,
                      bool fast, at::ScalarType type) {
  if (a.is_meta()) return at::empty({a.size(0), b.size(0)}, a.options().dtype(type));
  return at::_scaled_mm(a, b.t(), a_scales, b_scales, /*bias=*/{}, /*scale_result=*/{}, type, fast);
}

}  // namespace

at::Tensor scaled_mm(const Operand& a, const Operand& b, bool fast, at::ScalarType type) {
  const int64_t m = a.values.size(0), n = b.values.size(0);
  const at::Tensor left = filled_up(a.values, 1, kAlignment), right = filled_up(b.values, kAlignment, kAlignment);
  at::Tensor a_scales = a.scales, b_scales = filled_up(b.scales, right.size(0)).t();
  const bool rowwise = a_scales.dim() == 2;
  // If LibTorch's kernel for scales of rows sums inexactly, or sums exactly but slowly, the scales, which are powers of
  // two, are applied afterwards.
  const bool afterwards = rowwise && !fast && !has_exact_rowwise_products(left.device());
  const at::Tensor factors = afterwards ? a_scales * b_scales : at::Tensor();
  if (afterwards) a_scales = b_scales = at::ones({}, a_scales.options());
  // LibTorch writes fp32 only for one scale per operand.
  const at::ScalarType written = type == at::kBFloat16 || rowwise ? at::kBFloat16 : at::kFloat;
  at::Tensor product = product_of(left, right, a_scales, b_scales.contiguous(), fast, written);
  if (afterwards) product.mul_(factors);
  return product.narrow(1, 0, n).narrow(0, 0, m).to(type);
}

at::Tensor mx_tiles(const at::Tensor& exponents) {
  const at::Tensor bytes = exponents.view(at::kByte);
  const at::Tensor whole =
      at::constant_pad_nd(bytes, {0, missing_to(bytes.size(1), 4), 0, missing_to(bytes.size(0), 128)});
  const at::Tensor tiles = whole.view({whole.size(0) / 128, 4, 32, whole.size(1) / 4, 4}).permute({0, 3, 2, 1, 4});
  return tiles.contiguous().flatten().view(at::kFloat8_e8m0fnu);
}

at::Tensor mx_scaled_mm(const Operand& a, const Operand& b, at::ScalarType type) {
  const int64_t n = b.values.size(0);
  const at::Tensor right = filled_up(b.values, kAlignment, 1);
  const at::Tensor b_scales = at::constant_pad_nd(b.scales.view(at::kByte), {0, 0, 0, right.size(0) - n});
  const at::Tensor product =
      product_of(a.values.contiguous(), right, mx_tiles(a.scales), mx_tiles(b_scales), /*fast=*/false, at::kBFloat16);
  return product.narrow(1, 0, n).to(type);
}

namespace {

at::Tensor grouped_product_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                              const at::Tensor& b_scales, const at::Tensor& ends) {
  return at::_scaled_grouped_mm(a, b, a_scales.contiguous(), b_scales.contiguous(), ends, /*bias=*/{},
                                /*scale_result=*/{}, at::kBFloat16, /*use_fast_accum=*/true);
}

}  // namespace

bool fits_scaled_grouped_mm(int64_t in, int64_t out) { return in % kGroupMultiple == 0 && out % kGroupMultiple == 0; }

at::Tensor scaled_grouped_mm(const at::Tensor& a, const Operand& b, const RowGroups& groups) {
  if (a.is_meta()) return at::empty({a.size(0), b.values.size(1)}, a.options());
  const PaddedGroups to = pad_groups(groups, a);
  const Operand rows = quantise_padded_rows(a, to);
  const at::Tensor product = grouped_product_of(rows.values, b.values.contiguous().transpose(1, 2), rows.scales,
                                                b.scales.squeeze(-1), to.ends);
  at::Tensor result = product.index_select(0, to.places).to(a.scalar_type());
  clear_rows_of_no_group(result, groups);
  return result;
}

at::Tensor scaled_grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups) {
  if (x.is_meta()) return at::empty({groups.count(), dy.size(1), x.size(1)}, x.options());
  const PaddedGroups to = pad_groups(groups, x);
  const Operand left = quantise_padded_columns(dy, to, groups), right = quantise_padded_columns(x, to, groups);
  at::Tensor gradient =
      grouped_product_of(left.values, right.values.t(), left.scales.flatten(), right.scales.flatten(), to.ends);
  // The gradient of a group without rows is zero.
  const at::Tensor none = at::diff(at::constant_pad_nd(to.ends, {1, 0})).eq(0);
  return gradient.masked_fill_(none.view({-1, 1, 1}), 0).to(x.scalar_type());
}

}  // namespace titan::nn
