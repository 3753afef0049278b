#include "worker/rank/nn/rope.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/rank/device/host_waits.h"
#include "worker/rank/kernels/cpu/rope.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/own_kernels.h"

// This file applies the same operations in the same order and precision as torchtitan, because a table that differs in
// the last bit changes every logit.
namespace titan::nn {
namespace {

// Stretches wavelengths longer than the original context by `factor`, keeps short ones, and blends those between.
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

// Returns the pair (not an integer) that turns `turns` times over the original context.
double pair_of(double turns, const RopeOptions& options) {
  return static_cast<double>(options.head_dim) *
         std::log(static_cast<double>(options.yarn->original_context) / (turns * 2 * M_PI)) /
         (2 * std::log(options.theta));
}

// Returns [pairs]: 0 for pairs up to `low`, 1 from `high` on, linear in between.
at::Tensor ramp(int64_t pairs, double low, double high, const at::TensorOptions& real) {
  return ((at::arange(pairs, real) - low) / (high - low)).clamp(0, 1);
}

// Returns YaRN's frequencies, [head_dim / 2]. inverse [head_dim / 2] is theta^(2i / D), the inverse frequencies.
at::Tensor yarn_frequencies(const at::Tensor& inverse, const RopeOptions& options) {
  const YarnStretch& yarn = *options.yarn;
  double low = pair_of(yarn.beta_fast, options), high = pair_of(yarn.beta_slow, options);
  const int64_t pairs = options.head_dim / 2;
  if (!yarn.whole_bounds) {
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(options.head_dim - 1));
    if (low == high) high += 0.001;
    const at::Tensor kept = at::rsub(ramp(pairs, low, high, inverse.options()), 1);
    return (inverse * yarn.factor).reciprocal() * at::rsub(kept, 1) + inverse.reciprocal() * kept;
  }
  low = std::max(std::floor(low), 0.0);
  high = std::min(std::ceil(high), static_cast<double>(options.head_dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor kept = at::rsub(ramp(pairs, low, high, inverse.options()), 1);
  const at::Tensor frequencies = inverse.reciprocal();
  return frequencies / yarn.factor * at::rsub(kept, 1) + frequencies * kept;
}

at::Tensor frequencies_of(const RopeOptions& options, const at::TensorOptions& real) {
  const at::Tensor exponent =
      at::arange(0, options.head_dim, 2, real.dtype(at::kLong)).to(real.dtype()) / options.head_dim;
  const at::Tensor inverse = at::pow(options.theta, exponent);
  if (options.yarn) return yarn_frequencies(inverse, options);
  const at::Tensor frequencies = inverse.reciprocal();
  return options.scaling.enabled ? stretch(frequencies, options.scaling) : frequencies;
}

at::Tensor rotate_neighbours(const at::Tensor& x, const at::Tensor& rows) {
  const at::Tensor z = at::view_as_complex(x.reshape({x.size(0), x.size(1), x.size(2), x.size(3) / 2, 2}));
  return at::view_as_real(z * rows).flatten(3);
}

at::Tensor rotate_halves(const at::Tensor& x, const at::Tensor& rows) {
  const std::vector<at::Tensor> turn = rows.chunk(2, 3), halves = x.chunk(2, 3);
  const at::Tensor &cos = turn[0], &sin = turn[1], &first = halves[0], &second = halves[1];
  return at::cat({first * cos - second * sin, second * cos + first * sin}, 3);
}

// `back` applies the transposed rotation.
at::Tensor own_rotation(const at::Tensor& input, const at::Tensor& table, const at::Tensor& positions, bool back) {
  const at::Tensor x = input.stride(3) == 1 ? input : input.contiguous();
  at::Tensor y = uninitialized(x.sizes(), x.options());
  compute_rows<kernels::RopeRotation>(
      x, kernels::rope,
      {.batches = x.size(0),
       .tokens = x.size(1),
       .heads = x.size(2),
       .dim = x.size(3),
       .x = x.const_data_ptr(),
       .x_batch = x.stride(0),
       .x_token = x.stride(1),
       .x_head = x.stride(2),
       .y = y.mutable_data_ptr(),
       .y_batch = y.stride(0),
       .y_token = y.stride(1),
       .y_head = y.stride(2),
       .table = static_cast<const float*>(table.const_data_ptr()),  // Complex tables have cosine and sine side by side.
       .positions = positions.defined() ? positions.const_data_ptr<int64_t>() : nullptr,
       .halves = !table.is_complex(),
       .inverse = back,
       .threads = at::get_num_threads()});
  return y;
}

struct OwnRope : torch::autograd::Function<OwnRope> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& table,
                            const std::optional<at::Tensor>& positions) {
    const at::Tensor places = positions.value_or(at::Tensor());
    context->save_for_backward({table, places});
    return own_rotation(x, table, places, /*back=*/false);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {own_rotation(gradients[0], saved[0], saved[1], /*back=*/true), {}, {}};
  }
};

}  // namespace

at::Tensor rope_table(const RopeOptions& options, at::Device device, at::ScalarType compute) {
  TORCH_CHECK(options.head_dim > 0 && options.head_dim % 2 == 0, "RoPE needs an even head size, got ",
              options.head_dim);
  const at::TensorOptions real = at::TensorOptions().device(device).dtype(accumulate_type(compute));
  const at::Tensor frequencies = frequencies_of(options, real);
  const at::Tensor angle = at::outer(at::arange(options.max_seq_len, real.dtype(at::kLong)), frequencies);
  const double factor = options.yarn ? options.yarn->cos_sin_factor : 1.0;
  if (options.pairs == RopePairs::kRotateHalf) return at::cat({angle.cos() * factor, angle.sin() * factor}, 1);
  return at::polar(at::full_like(angle, factor), angle);
}

at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& table, const at::Tensor& positions) {
  const int64_t length = x.size(1), width = table.is_complex() ? x.size(3) / 2 : x.size(3);
  TORCH_CHECK(length <= table.size(0) && width == table.size(1), "RoPE table of ", table.sizes(),
              " does not fit activations of ", x.sizes());
  if (can_use_row_kernels(x, kernels::TrainingPart::kModel) &&
      c10::toRealValueType(table.scalar_type()) == at::kFloat) {
    return OwnRope::apply(x, table,
                          positions.defined() ? std::optional<at::Tensor>(positions.contiguous()) : std::nullopt);
  }
  const at::Tensor rows =
      (positions.defined() ? table.index_select(0, positions) : table.narrow(0, 0, length)).view({1, length, 1, width});
  const at::Tensor wide = x.to(accumulate_type(x.scalar_type()));
  const at::Tensor turned = table.is_complex() ? rotate_neighbours(wide, rows) : rotate_halves(wide, rows);
  return turned.to(x.scalar_type());
}

at::Tensor rope_rows(const RopeOptions& options, const at::Tensor& positions, const std::vector<int64_t>& axis_of_pair,
                     at::ScalarType compute) {
  TORCH_CHECK(2 * static_cast<int64_t>(axis_of_pair.size()) == options.head_dim, "RoPE: ", axis_of_pair.size(),
              " axes for the pairs of heads of ", options.head_dim);
  const at::TensorOptions real = positions.options().dtype(accumulate_type(compute));
  const at::Tensor axis = device::copy_async(at::tensor(axis_of_pair, at::kLong), positions.device());
  const at::Tensor place = positions.flatten(1).to(real.dtype()).index_select(0, axis).t();  // [B * T, head_dim / 2]
  const at::Tensor angle = place * frequencies_of(options, real);
  const double factor = options.yarn ? options.yarn->cos_sin_factor : 1.0;
  return at::cat({angle.cos() * factor, angle.sin() * factor}, 1);
}

at::Tensor apply_rope_rows(const at::Tensor& x, const at::Tensor& rows) {
  return apply_rope(x.flatten(0, 1).unsqueeze(0), rows).view(x.sizes());
}

void Rope::fill(at::Device device, at::ScalarType compute) {
  if (table_.defined() && table_.device() == device &&
      c10::toRealValueType(table_.scalar_type()) == accumulate_type(compute)) {
    return;
  }
  table_ = rope_table(options_, device, compute);
}

}  // namespace titan::nn
