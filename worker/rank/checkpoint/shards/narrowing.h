#pragma once

// Casts tensors for an export, and reports the values that the narrower type cannot hold.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace titan::checkpoint {

// Returns the type that an export to `wanted` under Titan's own names gives the tensor `key` ("model.<FQN>"). Integers
// keep their type. So do the biases that balance experts, because their last bits decide which experts are chosen.
at::ScalarType narrowed_type(const std::string& key, at::ScalarType own, at::ScalarType wanted);

// Counts the bad values of one tensor, which may be cast in pieces.
class Narrowing {
 public:
  // Returns `value [...]`, of any shape, as `type`, and counts its bad values.
  at::Tensor cast(const at::Tensor& value, at::ScalarType type);

  bool overflows() const { return overflowing_ > 0; }
  // Returns "KEY: 2 numbers, the largest 100000, are beyond float16, whose maximum is 65504".
  std::string overflow(const std::string& key) const;
  bool has_nonfinite() const { return nonfinite_ > 0; }
  // Returns "KEY: 3 numbers are NaN or infinite".
  std::string nonfinite(const std::string& key) const;

 private:
  at::ScalarType type_ = at::kFloat;
  int64_t nonfinite_ = 0;    // NaN or infinite before the cast.
  int64_t overflowing_ = 0;  // Finite before it, infinite after.
  double largest_ = 0;       // Largest magnitude of the overflowing values.
};

// Treatment of finite values that the narrower type cannot hold.
enum class Overflow {
  kRefuse,       // Return an error: some values would be infinite.
  kWarn,         // Warn, and write infinities.
  kKeepFloat32,  // Warn, and keep the tensor in float32, so that no trained value is lost.
};

// Casts `value [...]`, of any shape, to `type`, as far as `overflow` allows, and appends a description of its bad
// values to `warnings`. Errors: OutOfRange, names the tensor, the count and the largest value.
absl::Status narrow(const std::string& key, at::ScalarType type, Overflow overflow, at::Tensor& value,
                    std::vector<std::string>& warnings);
// Does the same for a tensor that was cast in pieces and can no longer stay as it was: kKeepFloat32 only warns.
absl::Status judge(const std::string& key, const Narrowing& narrowing, Overflow overflow,
                   std::vector<std::string>& warnings);

}  // namespace titan::checkpoint
