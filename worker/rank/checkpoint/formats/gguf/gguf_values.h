#pragma once

// Values of tensors in the types of GGUF.

#include <ATen/ATen.h>

#include "worker/rank/checkpoint/formats/gguf/gguf_file.h"
#include "worker/rank/checkpoint/shards/narrowing.h"

namespace titan::checkpoint::gguf {

// Returns the bytes, uint8 [bytes_of(type, ...)], of `values [..., columns]` on the CPU, and counts the values that the
// type cannot hold in `narrowing`. kQ8_0 is ggml's Q8_0: a block's scale is its largest magnitude / 127, and values are
// rounded to the nearest multiple, halves away from zero; `columns` must be a multiple of kBlock. A scale beyond
// float16 counts as one value.
at::Tensor encode(const at::Tensor& values, Type type, Narrowing& narrowing);

}  // namespace titan::checkpoint::gguf
