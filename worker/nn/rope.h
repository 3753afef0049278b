#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace titan::nn {

// Llama 3.1's stretch of the low frequencies.
struct RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 8192;
  bool enabled = true;
};

struct RopeOptions {
  int64_t head_dim = 0;
  int64_t max_seq_len = 0;
  double theta = 500000;
  RopeScaling scaling;
};

// exp(i * position * frequency), complex [max_seq_len, head_dim / 2]: complex64, or complex128 for a float64 compute
// type.
at::Tensor rope_table(const RopeOptions& options, at::Device device, at::ScalarType compute);

// Rotates neighbouring pairs of x [B, T, H, D] as complex numbers, in at least fp32, by the rows of the table that
// `positions` (int64 [T]) names; undefined: the first T.
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& table, const at::Tensor& positions = {});

// The table that all blocks of one model share; fill() again with the same arguments does nothing.
class Rope {
 public:
  explicit Rope(RopeOptions options) : options_(options) {}
  void fill(at::Device device, at::ScalarType compute);
  at::Tensor apply(const at::Tensor& x, const at::Tensor& positions = {}) const {
    return apply_rope(x, table_, positions);
  }
  const at::Tensor& table() const { return table_; }

 private:
  RopeOptions options_;
  at::Tensor table_;
};

}  // namespace titan::nn
