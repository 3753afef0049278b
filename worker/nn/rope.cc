#include "worker/nn/rope.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "worker/nn/layers.h"

namespace titan::nn {
namespace {

// Wavelengths longer than the original context are stretched by `factor`, short ones kept, and those between are
// blended.
at::Tensor stretch(const at::Tensor& frequencies, const RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_context);
  const at::Tensor wavelength = frequencies.reciprocal() * (2 * M_PI);
  const at::Tensor is_long = wavelength > context / scaling.low_freq_factor;
  const at::Tensor is_short = wavelength < context / scaling.high_freq_factor;
  const at::Tensor stretched = at::where(is_long, frequencies / scaling.factor, frequencies);
  const at::Tensor smooth = (wavelength.reciprocal() * context - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor blended = at::rsub(smooth, 1) * stretched / scaling.factor + smooth * stretched;
  return at::where(at::logical_or(is_long, is_short), stretched, blended);
}

}  // namespace

// The same operations in the same order and precision as torchtitan: a table that differs in the last bit moves every
// logit.
at::Tensor rope_table(const RopeOptions& options, at::Device device, at::ScalarType compute) {
  TORCH_CHECK(options.head_dim > 0 && options.head_dim % 2 == 0, "RoPE needs an even head size, got ",
              options.head_dim);
  const at::ScalarType real = accumulate_type(compute);
  const at::TensorOptions on_device = at::TensorOptions().device(device);
  const at::Tensor exponent =
      at::arange(0, options.head_dim, 2, on_device.dtype(at::kLong)).to(real) / options.head_dim;
  at::Tensor frequencies = at::pow(options.theta, exponent).reciprocal();
  if (options.scaling.enabled) frequencies = stretch(frequencies, options.scaling);
  const at::Tensor angle = at::outer(at::arange(options.max_seq_len, on_device.dtype(at::kLong)), frequencies).to(real);
  return at::polar(at::ones_like(angle), angle);
}

at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& table, const at::Tensor& positions) {
  const int64_t length = x.size(1), pairs = x.size(3) / 2;
  TORCH_CHECK(length <= table.size(0) && pairs == table.size(1), "RoPE table of ", table.sizes(),
              " does not fit activations of ", x.sizes());
  const at::Tensor wide = x.to(accumulate_type(x.scalar_type()));
  const at::Tensor z = at::view_as_complex(wide.reshape({x.size(0), length, x.size(2), pairs, 2}));
  const at::Tensor rows = positions.defined() ? table.index_select(0, positions) : table.narrow(0, 0, length);
  const at::Tensor turned = z * rows.view({1, length, 1, pairs});
  return at::view_as_real(turned).flatten(3).to(x.scalar_type());
}

void Rope::fill(at::Device device, at::ScalarType compute) {
  const at::ScalarType wanted = accumulate_type(compute) == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
  if (table_.defined() && table_.device() == device && table_.scalar_type() == wanted) return;
  table_ = rope_table(options_, device, compute);
}

}  // namespace titan::nn
