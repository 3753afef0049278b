#pragma once

// Writes weights as float8 in blocks, as DeepSeek V3's and Qwen 3's float8 releases store them, which vLLM, SGLang and
// transformers read. hf_coded.h reads them.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/manifest.h"

namespace titan::checkpoint {

inline constexpr int64_t kFloat8Block = 128;  // Rows and columns that share a scale.

// A matrix as F8_E4M3 numbers, [rows, columns], and a float32 scale for each block, [rows / 128, columns / 128] rounded
// up. A number is about its float8 number times its block's scale.
struct Float8Matrix {
  at::Tensor numbers, scales;
};

// Rounds a matrix, [rows, columns], to the nearest float8 numbers. A block's scale is its largest number over 448, the
// largest of float8. Errors: OutOfRange if a number is NaN or infinite.
absl::StatusOr<Float8Matrix> quantize_float8(const at::Tensor& matrix);

// Whether an export as float8 stores the parameter so: the matrices of layers, but for routers, whose choices would
// change. Embedding, head, norms and biases keep their type.
bool takes_float8(const std::string& fqn, const std::vector<int64_t>& shape);

// Returns quantization_config for the model's config.json, which names the matrices that are not float8. Errors:
// FailedPrecondition, names the parameter, if a layer's matrices are not stored one by one, because other programs
// expect one scale per block of a matrix.
absl::StatusOr<nlohmann::json> float8_config(const Manifest& manifest, const HfMapper& mapper);

}  // namespace titan::checkpoint
