#include "worker/rank/runtime/engine/device_draw.h"

#include <limits>
#include <utility>

#include "worker/rank/nn/random.h"

namespace titan::runtime {

device::NormalBox normal_box(const nn::Parameter& parameter, uint64_t seed, std::vector<int64_t> offset,
                             std::vector<int64_t> box) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const nn::Init& init = parameter.init;
  const bool cut = init.kind == nn::Init::Kind::kTruncatedNormal;
  const nn::TruncatedNormal normal(init.std, cut ? init.lower : -kInfinity, cut ? init.upper : kInfinity);
  return {.key = nn::stream_key(seed, parameter.fqn),
          .std = normal.std,
          .lower = normal.lower,
          .upper = normal.upper,
          .below = normal.below,
          .above = normal.above,
          .inside = normal.inside,
          .shape = parameter.global_shape,
          .offset = std::move(offset),
          .box = std::move(box)};
}

}  // namespace titan::runtime
