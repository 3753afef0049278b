#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace titan::checkpoint {

// How numbers are kept that a slice does not hold as such (an optimizer's 8-bit state). Checkpoints hold the numbers,
// so that a state may be kept in another form, and cut in another way, when it is loaded. On CPU tensors, on any
// thread.
struct Form {
  std::vector<int64_t> shape;                                 // Of the numbers: the piece's.
  std::function<at::Tensor(const at::Tensor& kept)> numbers;  // float32, contiguous.
  std::function<at::Tensor(const at::Tensor& numbers)> kept;  // Of any floating-point type.
};

// One rank's piece of one global tensor: rows [offset, offset + local.size(d)) in every dim d.
struct Slice {
  std::string key;              // "model.<FQN>", "optim.<state>.<FQN>" such as "optim.exp_avg.<FQN>", "optim.step"
  std::vector<int64_t> shape;   // Global shape; empty for a scalar.
  std::vector<int64_t> offset;  // Same length as shape.
  at::Tensor local;     // Contiguous; live state: saving copies from it, loading copies into it. May have 0 elements.
  bool primary = true;  // Among ranks that hold the same piece, the one that writes it.
  std::shared_ptr<const Form> form = nullptr;  // Null: `local` is the numbers. Else it is what they are kept as.
  // Set: what is loaded goes here as it was read. Then `local` has the piece's shape alone, and cannot be saved.
  std::function<void(const at::Tensor& piece)> store = nullptr;

  std::vector<int64_t> size() const { return form == nullptr ? local.sizes().vec() : form->shape; }  // Of the piece.
};

}  // namespace titan::checkpoint
