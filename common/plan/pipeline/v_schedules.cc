#include "common/plan/pipeline/v_schedules.h"

#include <algorithm>

#include "common/plan/pipeline/rank_order.h"

namespace titan::pipeline {

// With F, I and W of equal length no rank ever waits once its first microbatch has come: as many weight gradients as
// needed are held back for the end. Written for the 2 ranks - 1 microbatches that fill the pipeline; fewer run as if
// the others took no time.
std::vector<Step> zero_bubble_v(const Schedule& shape, int rank) {
  const int ranks = shape.ranks;
  const int outer = rank;
  const int inner = 2 * ranks - 1 - rank;
  const int microbatches = std::max(2 * ranks - 1, shape.microbatches);
  RankOrder out;
  const auto whole_backward = [&](int stage) {
    out.input_gradient(stage);
    out.weight_gradient(stage);
  };
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) out.forward(outer);  // Until the first comes back up.
  for (int i = 0; i < rank; ++i) {
    out.forward(inner);
    out.forward(outer);
  }
  for (int i = 0; i < ranks - rank; ++i) {  // The outer stage's first gradient is on its way.
    out.forward(inner);
    whole_backward(inner);
  }
  while (out.forwards(inner) < out.forwards(outer) || out.forwards(outer) < microbatches) {
    if (out.forwards(outer) < microbatches) out.forward(outer);
    whole_backward(outer);
    out.forward(inner);
    whole_backward(inner);
  }
  for (int i = 0; i < rank; ++i) {  // The others wait for these gradients: weights later.
    out.input_gradient(outer);
    out.input_gradient(inner);
  }
  for (int i = 0; i < ranks - rank; ++i) whole_backward(outer);
  out.all_weight_gradients(inner);
  out.all_weight_gradients(outer);
  return out.finish(shape.microbatches);
}

// In the middle a forward pass of one stage runs beside a backward pass of the other, so that the exchange of tokens
// between experts of the one hides behind the products of the other.
std::vector<Step> dual_pipe_v(const Schedule& shape, int rank) {
  const int ranks = shape.ranks;
  const int outer = rank;
  const int inner = 2 * ranks - 1 - rank;
  const int behind = ranks - 1 - rank;  // Ranks further down the V.
  RankOrder out;
  for (int i = 0; i < 2 * behind; ++i) out.forward(outer);
  for (int i = 0; i <= rank; ++i) {
    out.forward(outer);
    out.forward(inner);
  }
  for (int i = 0; i < behind; ++i) {
    out.input_gradient(inner);
    out.weight_gradient();
    out.forward(inner);
  }
  for (int i = 0; i < shape.microbatches - 2 * ranks + rank + 1; ++i) {
    if (i == 0 && behind == 0) {  // Alone, the first forward reaches the rank's own inner stage sooner.
      out.forward(outer);
      out.backward(inner);
    } else {
      out.pair(outer, inner);
    }
    out.pair(inner, outer);
  }
  for (int i = 0; i < behind; ++i) {
    out.backward(inner);
    out.pair(inner, outer);
  }
  // What is left: 2 (rank + 1) + behind backward passes. From the middle of the first group on, only input gradients.
  bool split = false;
  const auto drain = [&](int stage) { split ? out.input_gradient(stage) : out.backward(stage); };
  const int middle = (rank + 1) / 2;
  for (int i = 0; i <= rank; ++i) {
    split = split || (i == middle && rank % 2 == 1);
    drain(inner);
    split = split || (i == middle && rank % 2 == 0);
    drain(outer);
  }
  for (int i = 0; i < behind; ++i) {
    out.weight_gradient();
    drain(outer);
  }
  out.all_weight_gradients();
  return out.finish(shape.microbatches);
}

}  // namespace titan::pipeline
