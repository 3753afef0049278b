#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/rank/kernels/dynamic_map.h"

namespace titan::optim {

// 8-bit codes of a piece [..., columns] of a matrix, kept in one tensor of bytes: a code a number, then a float32 scale
// a block of 256 neighbours of the whole row (common/plan/memory/state_blocks.h). worker/rank/kernels/cpu/small_adam.h
// says how numbers become codes, and what that costs; here it is done by LibTorch's operations, on any device. Codes of
// what codes say are the same codes.
class BlockCodes {
 public:
  // `first_column`: of the piece, in the whole row.
  BlockCodes(at::IntArrayRef shape, int64_t first_column, bool is_signed, at::Device device);

  int64_t rows() const { return rows_; }  // Those of all leading dims.
  int64_t columns() const { return columns_; }
  int64_t first_column() const { return first_column_; }
  // The map in the memory of the piece's device.
  const kernels::DynamicMap* map() const;
  const std::vector<int64_t>& shape() const { return shape_; }

  at::Tensor zeros() const;                         // Bytes of a piece of zeros.
  at::Tensor codes(const at::Tensor& bytes) const;  // uint8 [rows, columns], a view.
  // float32 [rows, blocks of a row], a view.
  at::Tensor scales(const at::Tensor& bytes) const;

  // The piece's numbers, float32 of its shape, where the bytes are; and the bytes of numbers, likewise.
  at::Tensor numbers(const at::Tensor& bytes) const;
  at::Tensor bytes(const at::Tensor& numbers) const;

  // The same of some rows: float32 [count, columns]; codes and scales of them.
  at::Tensor numbers_of(const at::Tensor& bytes, int64_t first, int64_t count) const;
  std::pair<at::Tensor, at::Tensor> codes_of(const at::Tensor& rows) const;

 private:
  // The map's numbers, and the bounds between its magnitudes (worker/rank/kernels/dynamic_map.h).
  struct Tables {
    at::Tensor values, bounds;
    at::Tensor map;  // Its bytes; undefined where the program's own is read.
  };
  Tables tables(at::Device device) const;
  at::Tensor in_blocks(const at::Tensor& rows) const;
  at::Tensor out_of_blocks(const at::Tensor& blocks) const;

  std::vector<int64_t> shape_;
  int64_t rows_, columns_, first_column_, blocks_;
  bool is_signed_;
  at::Device device_;
  Tables tables_;  // On device_.
};

}  // namespace titan::optim
