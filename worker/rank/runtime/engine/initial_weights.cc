#include "worker/rank/runtime/engine/initial_weights.h"

#include <algorithm>
#include <vector>

#include "worker/rank/nn/init.h"
#include "worker/rank/nn/nf4.h"
#include "worker/rank/runtime/engine/device_draw.h"

namespace titan::runtime {

using parallel::ShardedParameter;

namespace {

// Draws this rank's part on the device: the same bits without a copy over the bus. Returns false if the device cannot.
bool draw_on_device(const ShardedParameter& placed, uint64_t seed, device::Device& device) {
  const nn::Parameter& parameter = *placed.parameter;
  const nn::Init::Kind kind = parameter.init.kind;
  if (kind != nn::Init::Kind::kTruncatedNormal && kind != nn::Init::Kind::kNormal) return false;
  at::Tensor target = placed.value;
  at::Tensor drawn = at::empty(target.sizes(), target.options().dtype(at::kFloat));
  if (!device.draw(normal_box(parameter, seed, placed.global_offset(), target.sizes().vec()), drawn)) return false;
  target.copy_(drawn);
  return true;
}

// A packed parameter is first drawn as floats, some rows at a time.
void draw_and_pack(const ShardedParameter& placed, uint64_t seed) {
  const std::vector<int64_t> offset = placed.global_offset();
  const int64_t columns = placed.parameter->shape[1], step = std::max<int64_t>(1, (1 << 22) / columns);
  for (int64_t first = 0; first < placed.rows; first += step) {
    const int64_t rows = std::min(step, placed.rows - first);
    const at::Tensor drawn = at::empty({rows, columns}, at::kFloat);
    nn::fill_box(*placed.parameter, seed, {offset[0] + first, offset[1]}, drawn);
    nn::nf4_pack(drawn, placed.value.narrow(0, first, rows));
  }
}

}  // namespace

void draw_parameter(const ShardedParameter& placed, uint64_t seed, device::Device& device) {
  if (placed.parameter->packed_row > 0) {
    draw_and_pack(placed, seed);
    return;
  }
  at::Tensor target = placed.value;
  if (target.is_cpu()) {
    nn::fill_box(*placed.parameter, seed, placed.global_offset(), target);
  } else if (!draw_on_device(placed, seed, device)) {
    at::Tensor drawn = at::empty(target.sizes(), target.options().device(at::kCPU));
    nn::fill_box(*placed.parameter, seed, placed.global_offset(), drawn);
    target.copy_(drawn);
  }
}

}  // namespace titan::runtime
