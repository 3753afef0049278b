#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace titan::nn {

// The number of the document that each token belongs to (MicrobatchContext::documents), counted from 0 in each row of
// tokens [B, seq_len]: a document ends with eos_id, inclusive (torchtitan's block-causal mask). The rows must be whole:
// under context parallelism, before a rank takes its share.
at::Tensor number_documents(const at::Tensor& tokens, int64_t eos_id);

}  // namespace titan::nn
