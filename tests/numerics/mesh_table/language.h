#pragma once

// The closed form of language models, in parts: collectives, FLOPs and memory of a decoder's blocks on one rank. FLOPs
// do not include those of a tower before it.

#include "tests/numerics/mesh_table/rank_share.h"
#include "tests/numerics/mesh_table/table_model.h"

namespace titan::testing {

void add_language_traffic(const RankShare& share, const std::string& block, TrafficCounts& traffic);
int64_t language_product_flops(const RankShare& share);
int64_t language_attention_flops(const RankShare& share);
int64_t language_bytes_for_backward(const RankShare& share, const std::string& block, int64_t microbatch);
int64_t language_bytes_for_weights(const RankShare& share, const std::string& block, int64_t microbatch);

}  // namespace titan::testing
