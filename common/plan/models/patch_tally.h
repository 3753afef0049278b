#pragma once

// Adds up what the operations of one block of a vision tower keep for the backward pass.

#include <cstdint>

#include "common/plan/models/activations.h"
#include "common/plan/models/vision_activations.h"

namespace titan::models {

class PatchTally {
 public:
  explicit PatchTally(const VisionShape& shape)
      : shape_(shape), e_(shape.element_bytes), wide_(e_ == 8 ? 8 : 4), patches_(shape.patches) {}

  // Returns the bytes of so many columns of each patch.
  int64_t bytes(int64_t columns) const { return patches_ * columns * e_; }
  void keep(int64_t columns) { result.graph += bytes(columns); }

  // Counts the copy of the pixels, which are fp32, in another type. The block that reads them is never recomputed.
  void pixels(int64_t values) {
    constexpr int64_t kPixelBytes = 4;
    if (e_ != kPixelBytes) keep(values);
    result.by_operation = result.graph;
  }

  // Counts the mean and the deviation of each row, and the result, of `columns` columns of each patch. The input is
  // counted elsewhere. `patches_of_row`: patches that are normalized together.
  void norm(int64_t columns, int64_t patches_of_row = 1) {
    result.graph += 2 * patches_ / patches_of_row * wide_;
    keep(columns);
  }

  // Counts a feed-forward with its norm, and the sum that the norm reads.
  void feed_forward(int64_t dim, int64_t hidden) {
    keep(dim);
    norm(dim);
    product(dim, hidden);
    keep(2 * hidden);  // The activation's input and result.
    product(hidden, dim);
  }

  // Counts a matrix product [rows, depth] x [depth, columns] that a memory budget may keep. Recomputation by operation
  // keeps none, because all have biases. `patches_of_row`: patches that are one row.
  void product(int64_t depth, int64_t columns, int64_t patches_of_row = 1) {
    const int64_t rows = patches_ / patches_of_row;
    result.costly.push_back({rows * columns * e_, 2.0 * static_cast<double>(rows * depth * columns)});
  }

  // Counts the result and the logs of the denominators.
  void attention(int64_t dim, int64_t heads) {
    const int64_t all = bytes(dim) + patches_ * heads * wide_;
    result.graph += all;
    result.by_operation += all;
    result.costly.push_back(
        {all, 4.0 * static_cast<double>(patches_ * dim) * static_cast<double>(shape_.patches_of_image)});
  }

  BlockActivations result;

 private:
  const VisionShape& shape_;
  const int64_t e_, wide_;
  const int64_t patches_;
};

}  // namespace titan::models
