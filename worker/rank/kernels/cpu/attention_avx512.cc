#include "worker/rank/kernels/cpu/attention_body.h"
#include "worker/rank/kernels/cpu/attention_vectors512.h"

namespace titan::kernels {
namespace {

struct Avx512 : Vectors512<4> {
  static constexpr int kLanes = 16;
  static constexpr int kRows = 12;  // 24 of the 32 registers hold sums.
};

}  // namespace

const AttentionLevel kAttentionAvx512 = level_of<FmaAttention<Avx512>>();

}  // namespace titan::kernels
