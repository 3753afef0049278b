#include "common/plan/memory/deepstack.h"

#include <algorithm>

namespace titan::memory {

void add_deepstack(const DeepstackInput& input, models::BlockActivations& layer) {
  layer.input = input.parts * input.own;
  if (input.keeps_own) layer.graph += input.own;
}

void add_deepstack(const DeepstackInput& input, BlockMemory& layer) {
  const int64_t whole = input.parts * input.own, kept = input.keeps_own ? input.own : 0;
  const int64_t passed = input.parts > 2 ? whole - input.own : 0;
  const int64_t result = 2 * input.own + passed;  // The layer's result, the sum with a part, and both with the others.
  layer.input = whole;
  layer.output = whole - input.own;
  layer.forward = whole + std::max(layer.forward, layer.graph + kept + result);
  layer.first_pass = whole + std::max(layer.first_pass, result);
  // The gradients of the added part and of the others are as wide as the whole input, and are summed first.
  for (Moment& moment : layer.backward) moment.activations += whole;
  layer.backward.insert(layer.backward.begin(), {layer.graph + kept + (passed > 0 ? 2 : 1) * whole, 0});
  layer.backward.push_back({2 * whole + input.own, layer.backward.back().weight_gradients});
  layer.graph += kept;
}

}  // namespace titan::memory
