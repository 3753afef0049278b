#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace titan::checkpoint {

// One rank's piece of one global tensor: rows [offset, offset + local.size(d)) in every dim d.
struct Slice {
  std::string key;              // "model.<FQN>", "optim.exp_avg.<FQN>", "optim.exp_avg_sq.<FQN>", "optim.step"
  std::vector<int64_t> shape;   // Global shape; empty for a scalar.
  std::vector<int64_t> offset;  // Same length as shape.
  at::Tensor local;     // Contiguous; live state: saving copies from it, loading copies into it. May have 0 elements.
  bool primary = true;  // Among ranks that hold the same piece, the one that writes it.
  // Set: what is loaded goes here as it was read. Then `local` has the piece's shape alone, and cannot be saved.
  std::function<void(const at::Tensor& piece)> store = nullptr;
};

}  // namespace titan::checkpoint
