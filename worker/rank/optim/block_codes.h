#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/rank/kernels/dynamic_map.h"

namespace titan::optim {

// 8-bit codes of a piece [..., columns] of a matrix in one tensor uint8 [bytes]: one code per number, then one float32
// scale per block of 256 neighbours of the whole row (common/plan/memory/state_blocks.h).
// worker/rank/kernels/cpu/low_bit_adam.h defines how numbers become codes, and the error. Here LibTorch's operations do
// it, on any device. Encoding decoded numbers gives the same codes.
class BlockCodes {
 public:
  // `shape` is the piece's. `first_column` is its first column in the whole row.
  BlockCodes(at::IntArrayRef shape, int64_t first_column, bool is_signed, at::Device device);

  int64_t rows() const { return rows_; }  // Product of the leading dims.
  int64_t columns() const { return columns_; }
  int64_t first_column() const { return first_column_; }
  // Returns the map in the memory of the piece's device.
  const kernels::DynamicMap* map() const;
  const std::vector<int64_t>& shape() const { return shape_; }

  at::Tensor zeros() const;                         // uint8 [bytes]: a piece of zeros.
  at::Tensor codes(const at::Tensor& bytes) const;  // uint8 [rows, columns], a view of uint8 [bytes].
  // float32 [rows, blocks per row], a view of uint8 [bytes].
  at::Tensor scales(const at::Tensor& bytes) const;

  // Decode uint8 [bytes] to float32 numbers of the piece's shape, and encode such numbers, on the argument's device.
  at::Tensor numbers(const at::Tensor& bytes) const;
  at::Tensor bytes(const at::Tensor& numbers) const;

  // Do the same for some rows. numbers_of() decodes `count` rows from row `first` to float32 [count, columns].
  // codes_of() encodes float32 [count, columns] and returns the codes, uint8 [count, columns], and the scales, float32
  // [count, blocks per row].
  at::Tensor numbers_of(const at::Tensor& bytes, int64_t first, int64_t count) const;
  std::pair<at::Tensor, at::Tensor> codes_of(const at::Tensor& rows) const;

 private:
  // The map's numbers [256], and the bounds between its magnitudes, [127] or [255] (worker/rank/kernels/dynamic_map.h).
  struct Tables {
    at::Tensor values, bounds;
    at::Tensor map;  // uint8 [bytes] of the map. Undefined on the CPU, where the program's table is read.
  };
  Tables tables(at::Device device) const;
  // Reshape [count, columns] to [count, blocks per row, 256], padded with zeros, and back.
  at::Tensor in_blocks(const at::Tensor& rows) const;
  at::Tensor out_of_blocks(const at::Tensor& blocks) const;

  std::vector<int64_t> shape_;
  int64_t rows_, columns_, first_column_, blocks_;
  bool is_signed_;
  at::Device device_;
  Tables tables_;  // On device_.
};

}  // namespace titan::optim
