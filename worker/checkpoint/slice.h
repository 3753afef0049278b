#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

namespace titan::checkpoint {

// One rank's piece of one global tensor: rows [offset, offset + local.size(d)) in every dim d.
struct Slice {
  std::string key;              // "model.<FQN>", "optim.<state>.<FQN>" such as "optim.exp_avg.<FQN>", "optim.step"
  std::vector<int64_t> shape;   // Global shape; empty for a scalar.
  std::vector<int64_t> offset;  // Same length as shape.
  at::Tensor local;     // Contiguous; live state: saving copies from it, loading copies into it. May have 0 elements.
  bool primary = true;  // Among ranks that hold the same piece, the one that writes it.
};

}  // namespace titan::checkpoint
