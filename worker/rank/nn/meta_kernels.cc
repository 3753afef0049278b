#include "worker/rank/nn/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>

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

}  // namespace

void use_meta_kernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
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
    return true;
  }();
  (void)once;
}

}  // namespace titan::nn
