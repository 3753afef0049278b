#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace titan::checkpoint {

// Encoding in which a slice holds its numbers (an optimizer's 8-bit state). Checkpoints hold the decoded numbers, so
// that a state can be loaded into another encoding or another cut. Works on CPU tensors, on any thread.
struct StateEncoding {
  std::vector<int64_t> shape;                                 // Shape of the numbers: the piece's.
  std::function<at::Tensor(const at::Tensor& kept)> numbers;  // Decodes `kept [...]` to `[shape...]`, float32,
                                                              // contiguous.
  std::function<at::Tensor(const at::Tensor& numbers)> kept;  // Encodes numbers `[shape...]` of any floating-point
                                                              // type.
};

// One rank's piece of one global tensor: indices [offset, offset + local.size(d)) in every dim d.
struct Slice {
  std::string key;              // "model.<FQN>", "optim.<state>.<FQN>" such as "optim.exp_avg.<FQN>", "optim.step"
  std::vector<int64_t> shape;   // Global shape; empty for a scalar.
  std::vector<int64_t> offset;  // Same length as shape.
  at::Tensor local;     // `[size()...]` if `form` is null. Contiguous; live state: saving copies from it, loading
                        // copies into it. May have 0 elements.
  bool primary = true;  // Whether this rank, of those that hold the same piece, writes it.
  std::shared_ptr<const StateEncoding> form =
      nullptr;  // Null: `local` holds the numbers. Otherwise it holds their encoding.
  // If set, loading passes the piece `[size()...]` to it as read. Then `local` has only the piece's shape, and cannot
  // be saved.
  std::function<void(const at::Tensor& piece)> store = nullptr;

  // Returns the shape of the piece.
  std::vector<int64_t> size() const { return form == nullptr ? local.sizes().vec() : form->shape; }
};

}  // namespace titan::checkpoint
