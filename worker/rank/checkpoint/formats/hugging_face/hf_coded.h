#pragma once

// Reads boxes of tensors in safetensors files, as they are stored or, of quantized ones, as the numbers that they stand
// for. What lies outside the box is not read.

#include <ATen/ATen.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_quantization.h"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

// A tensor, and where it lies.
struct Stored {
  storage::ReadableFile* file = nullptr;
  std::string path;  // Of the file.
  TensorEntry entry;
};

// The box in the file's type, on the CPU. Runs of bytes that lie less than a page apart are read in one piece.
absl::StatusOr<at::Tensor> read_stored(const Stored& tensor, const Box& box);

// The box of the numbers of a quantized tensor, in float32. Holds little besides: some 20 MiB, or what one index of the
// first dim takes. DataLoss naming file and tensor when a scale or a number is NaN, or a scale is infinite or negative.
absl::StatusOr<at::Tensor> read_float8(const Stored& tensor, const Stored& scales, const Quantization& said,
                                       const Box& box);
absl::StatusOr<at::Tensor> read_mxfp4(const Stored& tensor, const Stored& scales, const Box& box);

}  // namespace titan::checkpoint
