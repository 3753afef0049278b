#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "common/plan/encoders/options.h"
#include "worker/rank/model/encoders/text_encoder.h"

namespace titan::encoders {

// How the matrices of linear layers are stored.
enum class WeightForm {
  kPlain,  // In compute dtype.
  // In rows of int8 (int8_rows.h): about half of bf16's memory. With random weights of the size of T5 v1.1 small the
  // encoding is off by 3.3 % of its norm in fp32, compared with 2.1 % for plain weights in bf16.
  kInt8,
};

// Builds the encoder of a T5 (arXiv 1910.10683) for T5's results [B, T, dim]. Its blocks are the embedding together
// with the table of position biases, one for each layer, and the final norm. Parameters have transformers' names, and
// no values yet.
TextEncoder build_t5(const T5Options& options, WeightForm form = WeightForm::kPlain);

// Returns the index into the table of position biases for each pair of a query and a key, int64 [T, T] on the CPU. Half
// of the buckets are for keys after the query. In each half, half of the buckets are for single distances, and the rest
// cover distances up to max_distance on a logarithmic scale. The logarithm is computed in fp32 on the CPU like that of
// transformers, so borders fall on the same distances on every device.
at::Tensor position_buckets(const T5Options& options, int64_t tokens);

}  // namespace titan::encoders
