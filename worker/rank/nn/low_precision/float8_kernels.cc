#include "worker/rank/nn/low_precision/float8_kernels.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "worker/rank/kernels/cpu/float8_casts.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

// Describes a tensor that is cut into blocks of `length` numbers along `dim`.
kernels::Blocks blocks_of(const at::Tensor& x, int64_t dim, int64_t length) {
  const int64_t at = at::maybe_wrap_dim(dim, x.dim());
  kernels::Blocks blocks{.block = std::max<int64_t>(length, 1)};
  for (int64_t i = 0; i < x.dim(); ++i) {
    (i < at ? blocks.outer : i == at ? blocks.size : blocks.inner) *= x.size(i);
  }
  return blocks;
}

// Returns the shape with one number per block.
std::vector<int64_t> shape_of(const kernels::Blocks& blocks, const at::Tensor& x, int64_t dim) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[at::maybe_wrap_dim(dim, x.dim())] = blocks.count();
  return shape;
}

const uint16_t* bits_of(const at::Tensor& x) { return reinterpret_cast<const uint16_t*>(x.const_data_ptr()); }
uint16_t* mutable_bits_of(at::Tensor& x) { return reinterpret_cast<uint16_t*>(x.mutable_data_ptr()); }

// Returns the bits of the bf16 number that LibTorch makes of each code.
std::array<uint16_t, 256> table_of(at::ScalarType float8) {
  const at::Tensor codes = at::arange(256, at::kByte).view(float8).to(at::kBFloat16);
  std::array<uint16_t, 256> table;
  std::copy_n(bits_of(codes), table.size(), table.begin());
  return table;
}

}  // namespace

bool cpu_loops_take(const at::Tensor& x) { return can_use_cpu_kernels(x) && x.is_contiguous(); }

bool table_takes(const at::Tensor& values) {
  return values.is_cpu() && values.is_contiguous() && kernels::chosen_level().has_value();
}

at::Tensor amax_of_blocks(const at::Tensor& x, int64_t dim, int64_t block) {
  const kernels::Blocks blocks = blocks_of(x, dim, block);
  at::Tensor most = at::zeros(shape_of(blocks, x, dim), x.options());
  kernels::amax_of_blocks(blocks, bits_of(x), mutable_bits_of(most), at::get_num_threads());
  return most.to(at::kFloat);
}

at::Tensor rounded_by_blocks(const at::Tensor& x, int64_t dim, int64_t block, const at::Tensor& scale,
                             const at::Tensor& inverse) {
  const kernels::Blocks blocks = blocks_of(x, dim, block);
  const std::vector<int64_t> shape = shape_of(blocks, x, dim);
  const at::Tensor scales = scale.contiguous(), inverses = inverse.contiguous();
  TORCH_INTERNAL_ASSERT(scales.sizes() == shape && inverses.sizes() == shape);
  at::Tensor result = uninitialized(x.sizes(), x.options());
  kernels::round_by_blocks(blocks, bits_of(x), scales.const_data_ptr<float>(), inverses.const_data_ptr<float>(),
                           mutable_bits_of(result), at::get_num_threads());
  return result;
}

at::Tensor encoded(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8) {
  at::Tensor values = uninitialized(x.sizes(), x.options().dtype(float8));
  const auto format = float8 == at::kFloat8_e4m3fn ? kernels::Float8Type::kE4m3 : kernels::Float8Type::kE5m2;
  kernels::encode(format, bits_of(x), x.numel(), *scale.const_data_ptr<float>(),
                  static_cast<uint8_t*>(values.mutable_data_ptr()), at::get_num_threads());
  return values;
}

at::Tensor decoded(const at::Tensor& values) {
  static const std::array<uint16_t, 256> e4m3 = table_of(at::kFloat8_e4m3fn), e5m2 = table_of(at::kFloat8_e5m2);
  at::Tensor numbers = uninitialized(values.sizes(), values.options().dtype(at::kBFloat16));
  kernels::decode(values.scalar_type() == at::kFloat8_e4m3fn ? e4m3 : e5m2,
                  static_cast<const uint8_t*>(values.const_data_ptr()), values.numel(), mutable_bits_of(numbers),
                  at::get_num_threads());
  return numbers;
}

}  // namespace titan::nn

namespace titan::nn::on_device {
namespace {

constexpr kernels::Float8Format kPowersOfTwo{.format = kernels::Float8Type::kE4m3, .power_of_two = true};

const kernels::DeviceKernels* kernels_for(const at::Tensor& x) {
  return x.numel() > 0 && x.is_contiguous() ? device_kernels_for(x, kernels::TrainingPart::kModel) : nullptr;
}

const uint16_t* bits_of(const at::Tensor& x) { return static_cast<const uint16_t*>(x.const_data_ptr()); }
uint8_t* bytes_of(at::Tensor& values) { return static_cast<uint8_t*>(values.mutable_data_ptr()); }

at::Tensor floats(const at::Tensor& x, at::IntArrayRef sizes) {
  return at::empty(sizes, x.options().dtype(at::kFloat));
}
at::Tensor no_magnitudes(const at::Tensor& x, at::IntArrayRef sizes) {
  return at::zeros(sizes, x.options().dtype(at::kFloat));
}

kernels::PaddedRows spread_of(const PaddedGroups& to) {
  return {.source = to.source.const_data_ptr<int32_t>(), .group = to.group.const_data_ptr<int32_t>()};
}

// Replaces the last dimension by `size`.
std::vector<int64_t> with_last(std::vector<int64_t> shape, int64_t size) {
  shape.back() = size;
  return shape;
}

// Finds the greatest magnitudes of columns, then quantises and transposes. `turn` gives the sizes.
Operand turned(const kernels::DeviceKernels& device, const at::Tensor& x, kernels::Float8Columns turn,
               at::IntArrayRef values, at::IntArrayRef scales) {
  at::Tensor amax = no_magnitudes(x, scales);
  Operand columns{.values = at::empty(values, x.options().dtype(at::kFloat8_e4m3fn)),
                  .scales = floats(x, scales),
                  .type = x.scalar_type()};
  turn.to = kPowersOfTwo;
  turn.x = bits_of(x);
  turn.amax = amax.const_data_ptr<float>();
  turn.values = bytes_of(columns.values);
  turn.inverse = columns.scales.data_ptr<float>();
  const kernels::Float8ColumnAmax find{.batch = turn.batch,
                                       .rows = turn.rows,
                                       .columns = turn.columns,
                                       .spread = turn.spread,
                                       .x = turn.x,
                                       .amax = amax.data_ptr<float>()};
  return device.run(find) && device.run(turn) ? columns : Operand{};
}

}  // namespace

at::Tensor amax_of(const at::Tensor& x) {
  const kernels::DeviceKernels* device = kernels_for(x);
  if (device == nullptr) return {};
  at::Tensor amax = no_magnitudes(x, {});
  if (!device->run(kernels::Float8Amax{.count = x.numel(), .x = bits_of(x), .amax = amax.data_ptr<float>()})) return {};
  return amax;
}

Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two) {
  const kernels::DeviceKernels* device = kernels_for(x);
  if (device == nullptr || amax.scalar_type() != at::kFloat || amax.device() != x.device()) return {};
  Operand all{
      .values = at::empty(x.sizes(), x.options().dtype(float8)), .scales = floats(x, {}), .type = x.scalar_type()};
  const kernels::Float8Type format =
      float8 == at::kFloat8_e4m3fn ? kernels::Float8Type::kE4m3 : kernels::Float8Type::kE5m2;
  const bool done = device->run(kernels::Float8Cast{.count = x.numel(),
                                                    .to = {.format = format, .power_of_two = power_of_two},
                                                    .x = bits_of(x),
                                                    .amax = amax.const_data_ptr<float>(),
                                                    .values = bytes_of(all.values),
                                                    .inverse = all.scales.data_ptr<float>()});
  return done ? all : Operand{};
}

Operand quantised_rows(const at::Tensor& x) {
  const kernels::DeviceKernels* device = kernels_for(x);
  if (device == nullptr) return {};
  Operand rows{.values = at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn)),
               .scales = floats(x, with_last(x.sizes().vec(), 1)),
               .type = x.scalar_type()};
  const bool done = device->run(kernels::Float8Rows{.rows = x.numel() / x.size(-1),
                                                    .columns = x.size(-1),
                                                    .to = kPowersOfTwo,
                                                    .x = bits_of(x),
                                                    .values = bytes_of(rows.values),
                                                    .inverse = rows.scales.data_ptr<float>()});
  return done ? rows : Operand{};
}

Operand quantised_columns(const at::Tensor& x) {
  const kernels::DeviceKernels* device = x.dim() >= 2 ? kernels_for(x) : nullptr;
  if (device == nullptr) return {};
  const int64_t rows = x.size(-2), columns = x.size(-1), batch = x.numel() / (rows * columns);
  std::vector<int64_t> values = x.sizes().vec();
  std::swap(values[values.size() - 2], values.back());
  return turned(*device, x, {.batch = batch, .rows = rows, .columns = columns}, values, with_last(values, 1));
}

PaddedGroups pad_groups(const RowGroups& groups, const at::Tensor& rows, int64_t padded_size) {
  const kernels::DeviceKernels* device = kernels_for(rows);
  if (device == nullptr || !groups.ends.defined() || groups.ends.scalar_type() != at::kInt) return {};
  const auto whole = groups.ends.options();
  PaddedGroups to{.places = at::empty({rows.size(0)}, whole),
                  .ends = at::empty_like(groups.ends),
                  .rows = padded_size,
                  .source = at::empty({padded_size}, whole),
                  .group = at::empty({padded_size / kGroupMultiple}, whole)};
  const at::Tensor ends = groups.ends.contiguous();
  const bool done = device->run(kernels::FindPaddedRows{.count = rows.size(0),
                                                        .groups = groups.count(),
                                                        .rows = padded_size,
                                                        .ends = ends.const_data_ptr<int32_t>(),
                                                        .source = to.source.data_ptr<int32_t>(),
                                                        .group = to.group.data_ptr<int32_t>(),
                                                        .places = to.places.data_ptr<int32_t>(),
                                                        .spread_ends = to.ends.data_ptr<int32_t>()});
  return done ? to : PaddedGroups{};
}

Operand quantise_padded_rows(const at::Tensor& x, const PaddedGroups& to) {
  const kernels::DeviceKernels* device = to.source.defined() ? kernels_for(x) : nullptr;
  if (device == nullptr) return {};
  Operand rows{.values = at::empty({to.rows, x.size(1)}, x.options().dtype(at::kFloat8_e4m3fn)),
               .scales = floats(x, {to.rows}),
               .type = x.scalar_type()};
  const bool done = device->run(kernels::Float8Rows{.rows = to.rows,
                                                    .columns = x.size(1),
                                                    .spread = spread_of(to),
                                                    .to = kPowersOfTwo,
                                                    .x = bits_of(x),
                                                    .values = bytes_of(rows.values),
                                                    .inverse = rows.scales.data_ptr<float>()});
  return done ? rows : Operand{};
}

Operand quantise_padded_columns(const at::Tensor& x, const PaddedGroups& to, int64_t groups) {
  const kernels::DeviceKernels* device = to.source.defined() ? kernels_for(x) : nullptr;
  if (device == nullptr) return {};
  const int64_t columns = x.size(1);
  return turned(*device, x, {.rows = to.rows, .columns = columns, .groups = groups, .spread = spread_of(to)},
                {columns, to.rows}, {groups, columns});
}

at::Tensor by_rows(const at::Tensor& values) {
  const kernels::DeviceKernels* device = device_kernels_at(values, kernels::TrainingPart::kModel);
  const at::Tensor lying = values.t();
  if (device == nullptr || values.numel() == 0 || !lying.is_contiguous()) return {};
  at::Tensor turned = at::empty(values.sizes(), values.options());
  const bool done = device->run(kernels::TransposeBytes{.rows = lying.size(0),
                                                        .columns = lying.size(1),
                                                        .from = static_cast<const uint8_t*>(lying.const_data_ptr()),
                                                        .to = bytes_of(turned)});
  return done ? turned : at::Tensor();
}

}  // namespace titan::nn::on_device
