#pragma once

// Which tensors of a Hugging Face folder are stored in fewer bits, and by which format: what its headers and
// config.json say. Knows no numbers (hf_dequantize.h) and reads no file (hf_coded.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint {

// What config.json says.
struct Quantization {
  std::string method;  // "fp8", "mxfp4"; empty: nothing.
  int64_t block_rows = 128, block_columns = 128;
  bool block_said = false;  // False: the size that DeepSeek's releases have is assumed.
};

// `text` is a config.json, `path` its name for messages. FailedPrecondition naming the method when it is one that is
// not read, and what to do; or when what is said of fp8's blocks makes no sense.
absl::StatusOr<Quantization> quantization_of(const std::string& text, const std::string& path);

// The tensor whose scales `key` holds by its name: "X.weight" for "X.weight_scale_inv", "X_blocks" for "X_scales";
// empty for any other name. And the reverse.
std::string scaled_by(const std::string& key);
std::string scales_of(const std::string& key);

enum class Coding {
  kPlain,   // Numbers, as they are.
  kFloat8,  // F8_E4M3; one scale by which each block of rows and columns is multiplied.
  kMxfp4,   // Bytes [..., groups, 16] of two E2M1 numbers each, the lower four bits first; E8M0 scales [..., groups].
};

// How a tensor's numbers are stored, and the shape that they have. `scales`: null when the folder has none by that
// name. FailedPrecondition, naming the tensor, when they cannot be read.
struct Coded {
  Coding coding = Coding::kPlain;
  std::vector<int64_t> shape;
};
absl::StatusOr<Coded> coding_of(const TensorEntry& tensor, const TensorEntry* scales, const Quantization& said);

inline constexpr int64_t kMxfp4Group = 32;  // Numbers that share a scale.

}  // namespace titan::checkpoint
