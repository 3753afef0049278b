#include "worker/rank/nn/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "worker/rank/nn/layers.h"

namespace titan::nn {
namespace {

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return at::empty(sizes, self.options());
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor& /*indices*/, int64_t weights,
                                    int64_t /*padding*/, bool /*scale*/) {
  return at::empty({weights, grad.size(-1)}, grad.options());
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const std::vector<int64_t> values = at::infer_size(self.sizes(), other.sizes());
  return at::empty(at::infer_size(condition.sizes(), values), self.options().dtype(at::result_type(self, other)));
}

at::Tensor logical(const at::Tensor& self, const at::Tensor& other) {
  return at::empty(at::infer_size(self.sizes(), other.sizes()), self.options().dtype(at::kBool));
}

at::Tensor logical_not(const at::Tensor& self) { return at::empty(self.sizes(), self.options().dtype(at::kBool)); }

at::Tensor polar(const at::Tensor& length, const at::Tensor& /*angle*/) {
  return at::empty(length.sizes(), length.options().dtype(at::toComplexType(length.scalar_type())));
}

// Returns `least` counts, because values are not known.
at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t least) {
  const bool weighted = weights && weights->defined();
  return at::empty({least}, weighted ? weights->options() : self.options().dtype(at::kLong));
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& /*least*/, const at::Scalar& /*most*/) {
  return at::empty({bins}, self.options());
}

at::Tensor flip(const at::Tensor& self, at::IntArrayRef /*dims*/) { return at::empty(self.sizes(), self.options()); }

at::Tensor roll(const at::Tensor& self, at::IntArrayRef /*shifts*/, at::IntArrayRef /*dims*/) {
  return at::empty(self.sizes(), self.options());
}

at::Tensor& abs_out(const at::Tensor& self, at::Tensor& out) {
  if (out.sizes() != self.sizes()) out.resize_(self.sizes());
  return out;
}

// The statistics are one number per row, as on CUDA in at least fp32.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& input, at::IntArrayRef normalized,
                                                          const std::optional<at::Tensor>& /*weight*/,
                                                          const std::optional<at::Tensor>& /*bias*/, double /*eps*/) {
  std::vector<int64_t> rows = input.sizes().vec();
  std::fill(rows.end() - static_cast<int64_t>(normalized.size()), rows.end(), 1);
  const at::TensorOptions wide = input.options().dtype(accumulate_type(input.scalar_type()));
  return {at::empty(input.sizes(), input.options()), at::empty(rows, wide), at::empty(rows, wide)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& /*grad*/, const at::Tensor& input, at::IntArrayRef normalized, const at::Tensor& /*mean*/,
    const at::Tensor& /*rstd*/, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    std::array<bool, 3> wanted) {
  const auto like = [&](const std::optional<at::Tensor>& parameter, bool wants) {
    return wants && parameter && parameter->defined() ? at::empty(normalized, parameter->options()) : at::Tensor();
  };
  return {wanted[0] ? at::empty(input.sizes(), input.options()) : at::Tensor(), like(weight, wanted[1]),
          like(bias, wanted[2])};
}

// The statistics are one number per group of channels.
std::tuple<at::Tensor, at::Tensor, at::Tensor> group_norm(const at::Tensor& input,
                                                          const std::optional<at::Tensor>& /*weight*/,
                                                          const std::optional<at::Tensor>& /*bias*/, int64_t rows,
                                                          int64_t /*channels*/, int64_t /*places*/, int64_t groups,
                                                          double /*eps*/) {
  const at::TensorOptions wide = input.options().dtype(accumulate_type(input.scalar_type()));
  return {at::empty(input.sizes(), input.options()), at::empty({rows, groups}, wide), at::empty({rows, groups}, wide)};
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& /*bias*/,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef /*output_padding*/, int64_t /*groups*/) {
  TORCH_CHECK(!transposed, "transposed convolutions have no shape function");
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[1] = weight.size(0);
  for (size_t d = 2; d < sizes.size(); ++d) {
    const auto of = [&](at::IntArrayRef list) { return list.size() == 1 ? list[0] : list[d - 2]; };
    const int64_t reach = of(dilation) * (weight.size(static_cast<int64_t>(d)) - 1) + 1;
    sizes[d] = (sizes[d] + 2 * of(padding) - reach) / of(stride) + 1;
  }
  return at::empty(sizes, input.options());
}

// The result is laid out by token, as that of fused kernels. [B, H, T, D]
std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& q, const at::Tensor& /*k*/, const at::Tensor& v,
                                             double /*dropout*/, bool /*causal*/,
                                             const std::optional<at::Tensor>& /*mask*/,
                                             std::optional<double> /*scale*/) {
  return {at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2),
          at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(accumulate_type(q.scalar_type())))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& /*grad*/, const at::Tensor& q,
                                                                  const at::Tensor& k, const at::Tensor& v,
                                                                  const at::Tensor& /*out*/, const at::Tensor& /*lse*/,
                                                                  double /*dropout*/, bool /*causal*/,
                                                                  const std::optional<at::Tensor>& /*mask*/,
                                                                  std::optional<double> /*scale*/) {
  return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
}

// LibTorch would compose it from operations that store the scores, which no device does.
at::Tensor frozen_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& /*mask*/, double /*dropout*/, bool causal,
                            std::optional<double> /*scale*/, bool /*grouped*/) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "attention without values has no backward pass outside of nn::attend()");
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0, causal));
}

}  // namespace

void use_meta_kernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  static torch::Library composed(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
  static const bool once = [] {
    library.impl("index_select", index_select);
    library.impl("embedding_dense_backward", embedding_dense_backward);
    library.impl("where.self", where);
    library.impl("logical_or", logical);
    library.impl("logical_and", logical);
    library.impl("logical_not", logical_not);
    library.impl("polar", polar);
    library.impl("bincount", bincount);
    library.impl("histc", histc);
    library.impl("flip", flip);
    library.impl("roll", roll);
    library.impl("abs.out", abs_out);
    library.impl("native_layer_norm", layer_norm);
    library.impl("native_layer_norm_backward", layer_norm_backward);
    library.impl("native_group_norm", group_norm);
    library.impl("convolution", convolution);
    library.impl("_scaled_dot_product_flash_attention_for_cpu", attention);
    library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward);
    composed.impl("scaled_dot_product_attention", frozen_attention);
    return true;
  }();
  (void)once;
}

}  // namespace titan::nn
