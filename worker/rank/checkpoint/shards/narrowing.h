#pragma once

// Casting tensors for an export, and what the narrower type cannot hold.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace titan::checkpoint {

// The type that an export to `wanted` under our own names gives the tensor `key` ("model.<FQN>"). Integers keep theirs,
// and so do the biases that balance experts: their last bits decide which experts are chosen.
at::ScalarType narrowed_type(const std::string& key, at::ScalarType own, at::ScalarType wanted);

// What is wrong with the numbers of one tensor, which may come in pieces.
class Narrowing {
 public:
  // `value` in `type`, and counted.
  at::Tensor cast(const at::Tensor& value, at::ScalarType type);

  bool overflows() const { return overflowing_ > 0; }
  // "KEY: 2 numbers, the largest 1e+05, are beyond float16, which ends at 65504".
  std::string overflow(const std::string& key) const;
  bool has_nonfinite() const { return nonfinite_ > 0; }
  // "KEY: 3 numbers are NaN or infinite".
  std::string nonfinite(const std::string& key) const;

 private:
  at::ScalarType type_ = at::kFloat;
  int64_t nonfinite_ = 0;    // Before the cast.
  int64_t overflowing_ = 0;  // Finite before it, infinite after.
  double largest_ = 0;       // Magnitude of the latter.
};

enum class Overflow {
  kRefuse,       // An error: the tensor's numbers would be infinite.
  kWarn,         // They are.
  kKeepFloat32,  // The tensor stays in float32, with a warning: what was trained is not lost.
};

// `value` in `type`, as far as `overflow` allows; appends to `warnings` what is wrong with it. Errors: OutOfRange
// names the tensor, the count and the largest number.
absl::Status narrow(const std::string& key, at::ScalarType type, Overflow overflow, at::Tensor& value,
                    std::vector<std::string>& warnings);
// The same for a tensor that was cast in pieces, which cannot stay as it was: kKeepFloat32 warns.
absl::Status judge(const std::string& key, const Narrowing& narrowing, Overflow overflow,
                   std::vector<std::string>& warnings);

}  // namespace titan::checkpoint
