#pragma once

// Reads boxes of tensors in safetensors files: as stored or, for quantized ones, as the numbers that they represent.
// Reads little outside of the box.

#include <ATen/ATen.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_quantization.h"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

// A tensor and its place.
struct Stored {
  storage::ReadableFile* file = nullptr;
  std::string path;  // Path of the file.
  TensorEntry entry;
};

// Returns the box, `[box.shape...]`, in the file's type, on the CPU; it may be a view with gaps. Runs of bytes less
// than a page apart are read at once.
absl::StatusOr<at::Tensor> read_stored(const Stored& tensor, const Box& box);

// Return the box, `[box.shape...]`, of a quantized tensor's numbers, in float32. Need little extra memory: about 20
// MiB, or one index of the first dim. Errors: DataLoss, names file and tensor, if a scale or a number is NaN, or a
// scale is infinite or negative.
absl::StatusOr<at::Tensor> read_float8(const Stored& tensor, const Stored& scales, const Quantization& said,
                                       const Box& box);
absl::StatusOr<at::Tensor> read_mxfp4(const Stored& tensor, const Stored& scales, const Box& box);

}  // namespace titan::checkpoint
