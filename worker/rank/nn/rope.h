#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace titan::nn {

// Llama 3.1's scaling of low frequencies.
struct RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 8192;
  bool enabled = true;
};

// YaRN (arXiv 2309.00071): pairs that turn fewer than beta_slow times over the original context are slowed down by
// `factor`, those with more than beta_fast turns are kept, and those between are blended.
struct YarnStretch {
  double factor = 40;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_context = 4096;
  bool whole_bounds = true;     // Bounds of the blend are rounded to whole pairs: in all models but GPT-OSS.
  double cos_sin_factor = 1.0;  // Multiplies the rotation, and thus the scores by its square.
};

// Which two channels of a head rotate together.
enum class RopePairs {
  kInterleaved,  // (2i, 2i + 1), as one complex number.
  kRotateHalf,   // (i, i + head_dim / 2).
};

struct RopeOptions {
  int64_t head_dim = 0;
  int64_t max_seq_len = 0;
  double theta = 500000;
  RopeScaling scaling;
  RopePairs pairs = RopePairs::kInterleaved;
  std::optional<YarnStretch> yarn;
};

// Returns the rotation of every position, for a compute type of at least fp32. kInterleaved: exp(i * position *
// frequency), complex [max_seq_len, head_dim / 2]. kRotateHalf: the cosines and then the sines, real [max_seq_len,
// head_dim].
at::Tensor rope_table(const RopeOptions& options, at::Device device, at::ScalarType compute);

// Rotates x [B, T, H, D] in at least fp32 by the rows of the table that `positions` (int64 [T]) selects, or the first T
// if undefined. A complex table rotates neighbours, a real one halves. Returns [B, T, H, D].
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& table, const at::Tensor& positions = {});

// Returns the rotation of tokens that have a position on each of several axes, such as time, row and column (Qwen2-VL's
// multimodal RoPE, arXiv 2409.12191): cosines, then sines, [B * T, head_dim], for a compute type of at least fp32.
// positions: int64 [axes, B, T]. axis_of_pair: for each pair of channels, the axis by which it turns, head_dim / 2.
at::Tensor rope_rows(const RopeOptions& options, const at::Tensor& positions, const std::vector<int64_t>& axis_of_pair,
                     at::ScalarType compute);

// Rotates x [B, T, H, D] by a separate row for each token, `rows` [B * T, D] of rope_rows(). Returns [B, T, H, D].
at::Tensor apply_rope_rows(const at::Tensor& x, const at::Tensor& rows);

// The table that all blocks of one model share. Calling fill() again with the same arguments does nothing.
class Rope {
 public:
  explicit Rope(RopeOptions options) : options_(options) {}
  void fill(at::Device device, at::ScalarType compute);
  // Rotates x [B, T, H, D] at positions int64 [T], like apply_rope().
  at::Tensor apply(const at::Tensor& x, const at::Tensor& positions = {}) const {
    return apply_rope(x, table_, positions);
  }
  const at::Tensor& table() const { return table_; }  // Shape of rope_table().

 private:
  RopeOptions options_;
  at::Tensor table_;  // Shape of rope_table().
};

}  // namespace titan::nn
