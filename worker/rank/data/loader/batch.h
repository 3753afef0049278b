#pragma once

#include <ATen/ATen.h>

namespace titan::data {

// A microbatch of one data-parallel rank.
struct Batch {
  at::Tensor tokens;  // int64 [batch, seq_len]
  at::Tensor labels;  // int64 [batch, seq_len]; -100 where nothing is to be foretold
  // The document of each token, counted in each row, int64 [batch, seq_len]; not defined where a token that ends
  // documents tells it. Padding is a document a token.
  at::Tensor documents;
};

}  // namespace titan::data
