#pragma once

// Finds which tensors of a Hugging Face folder are quantized, and in which format, from its headers and config.json.
// Does no arithmetic (hf_dequantize.h) and reads no file (hf_coded.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint {

// The quantization that config.json states.
struct Quantization {
  std::string method;  // "fp8", "mxfp4"; empty: none.
  int64_t block_rows = 128, block_columns = 128;
  bool block_said = false;  // False: the block size of DeepSeek's releases is assumed.
};

// `text` is a config.json, `path` its name for messages. FailedPrecondition for a method that is not supported, names
// it and a remedy; or if the block size of fp8 makes no sense.
absl::StatusOr<Quantization> quantization_of(const std::string& text, const std::string& path);

// Returns the tensor to which the scales `key` belong, by name: "X.weight" for "X.weight_scale_inv", "X_blocks" for
// "X_scales"; empty for any other name. scales_of() is the reverse.
std::string scaled_by(const std::string& key);
std::string scales_of(const std::string& key);

enum class Coding {
  kPlain,   // Numbers as they are.
  kFloat8,  // F8_E4M3; one scale multiplies each block of rows and columns.
  kMxfp4,   // Bytes [..., groups, 16] of two E2M1 numbers each, the lower four bits first; E8M0 scales [..., groups].
};

// How a tensor's numbers are stored, and their shape. `scales`: null if the folder has none of that name.
// FailedPrecondition, names the tensor, if they cannot be read.
struct Coded {
  Coding coding = Coding::kPlain;
  std::vector<int64_t> shape;
};
absl::StatusOr<Coded> coding_of(const TensorEntry& tensor, const TensorEntry* scales, const Quantization& said);

inline constexpr int64_t kMxfp4Group = 32;  // Numbers that share a scale.

}  // namespace titan::checkpoint
