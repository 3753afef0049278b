#include "worker/rank/optim/block_codes.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "common/plan/memory/state_blocks.h"

namespace titan::optim {
namespace {

using memory::kStateBlock;

// Limits the rows that are converted at a time, because LibTorch's operations need several times their memory.
int64_t rows_at_once(int64_t columns) {
  return std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(1, columns));
}

// Refers to the program's table without a copy.
at::Tensor as_tensor(const float* numbers, int64_t count) {
  return at::from_blob(const_cast<float*>(numbers), {count}, at::kFloat);
}

at::Tensor bytes_of(const kernels::DynamicMap& map) {
  return at::from_blob(const_cast<kernels::DynamicMap*>(&map), {static_cast<int64_t>(sizeof map)}, at::kByte);
}

}  // namespace

BlockCodes::BlockCodes(at::IntArrayRef shape, int64_t first_column, bool is_signed, at::Device device)
    : shape_(shape.vec()),
      rows_(c10::multiply_integers(shape.slice(0, shape.size() - 1))),
      columns_(shape.back()),
      first_column_(first_column % kStateBlock),
      blocks_(memory::blocks_of_row(first_column_, columns_)),
      is_signed_(is_signed),
      device_(device) {
  tables_ = tables(at::kCPU);
  tables_ = {tables_.values.to(device), tables_.bounds.to(device), {}};
  if (!device.is_cpu()) tables_.map = bytes_of(kernels::dynamic_map(is_signed_)).to(device);
}

const kernels::DynamicMap* BlockCodes::map() const {
  return tables_.map.defined() ? static_cast<const kernels::DynamicMap*>(tables_.map.const_data_ptr())
                               : &kernels::dynamic_map(is_signed_);
}

BlockCodes::Tables BlockCodes::tables(at::Device device) const {
  if (tables_.values.defined() && device == device_) return tables_;
  const kernels::DynamicMap& map = kernels::dynamic_map(is_signed_);
  const Tables here{as_tensor(map.values, 256), as_tensor(map.bounds, 255 - map.zero), {}};
  return {here.values.to(device), here.bounds.to(device), {}};
}

at::Tensor BlockCodes::zeros() const {
  return at::zeros({memory::quantized_state_bytes(rows_, first_column_, columns_)},
                   at::TensorOptions().dtype(at::kByte).device(device_));
}

at::Tensor BlockCodes::codes(const at::Tensor& bytes) const {
  return bytes.narrow(0, 0, rows_ * columns_).view({rows_, columns_});
}

at::Tensor BlockCodes::scales(const at::Tensor& bytes) const {
  return bytes.narrow(0, memory::scales_offset(rows_, columns_), rows_ * blocks_ * 4)
      .view(at::kFloat)
      .view({rows_, blocks_});
}

// Pads [rows, columns] to [rows, blocks, 256], with zeros for the numbers of a block that are not here.
at::Tensor BlockCodes::in_blocks(const at::Tensor& rows) const {
  const int64_t after = blocks_ * kStateBlock - first_column_ - columns_;
  const at::Tensor padded = first_column_ + after == 0 ? rows : at::constant_pad_nd(rows, {first_column_, after});
  return padded.view({rows.size(0), blocks_, kStateBlock});
}

at::Tensor BlockCodes::out_of_blocks(const at::Tensor& blocks) const {
  return blocks.view({blocks.size(0), blocks_ * kStateBlock}).narrow(1, first_column_, columns_);
}

at::Tensor BlockCodes::numbers_of(const at::Tensor& bytes, int64_t first, int64_t count) const {
  const at::Tensor some = codes(bytes).narrow(0, first, count);
  const at::Tensor values = tables(bytes.device()).values.index_select(0, some.flatten().to(at::kInt));
  const at::Tensor blocks = in_blocks(values.view({count, columns_}));
  return out_of_blocks(blocks.mul(scales(bytes).narrow(0, first, count).unsqueeze(2)));
}

std::pair<at::Tensor, at::Tensor> BlockCodes::codes_of(const at::Tensor& rows) const {
  const at::Tensor blocks = in_blocks(rows), high = blocks.amax(2), low = blocks.amin(2);
  const at::Tensor extreme = at::where(high.ge(low.neg()), high, low);
  const at::Tensor divisor = at::where(extreme.eq(0), at::ones_like(extreme), extreme);
  const at::Tensor ratio = blocks.div(divisor.unsqueeze(2));
  at::Tensor code = at::bucketize(ratio.abs(), tables(rows.device()).bounds, /*out_int32=*/true);
  if (is_signed_) code = at::where(ratio.lt(0), code.clamp_max(127).neg().add(127), code.add(127));
  return {out_of_blocks(code.to(at::kByte)), extreme.add(extreme.mul(0))};  // An infinity makes the scale NaN.
}

at::Tensor BlockCodes::numbers(const at::Tensor& bytes) const {
  at::Tensor all = at::empty({rows_, columns_}, bytes.options().dtype(at::kFloat));
  const int64_t step = rows_at_once(columns_);
  for (int64_t row = 0; row < rows_ && columns_ > 0; row += step) {
    const int64_t count = std::min(step, rows_ - row);
    all.narrow(0, row, count).copy_(numbers_of(bytes, row, count));
  }
  return all.view(shape_);
}

at::Tensor BlockCodes::bytes(const at::Tensor& numbers) const {
  at::Tensor all =
      at::zeros({memory::quantized_state_bytes(rows_, first_column_, columns_)}, numbers.options().dtype(at::kByte));
  const at::Tensor rows = numbers.reshape({rows_, columns_});
  const int64_t step = rows_at_once(columns_);
  for (int64_t row = 0; row < rows_ && columns_ > 0; row += step) {
    const int64_t count = std::min(step, rows_ - row);
    const auto [some, scale] = codes_of(rows.narrow(0, row, count).to(at::kFloat));
    codes(all).narrow(0, row, count).copy_(some);
    scales(all).narrow(0, row, count).copy_(scale);
  }
  return all;
}

}  // namespace titan::optim
