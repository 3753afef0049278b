#include "worker/rank/model/flux/packing.h"

namespace titan::model::flux {

at::Tensor pack(const at::Tensor& latents) {
  const int64_t rows = latents.size(0), channels = latents.size(1), high = latents.size(2) / 2,
                wide = latents.size(3) / 2;
  return latents.reshape({rows, channels, high, 2, wide, 2})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({rows, high * wide, channels * 4});
}

at::Tensor unpack(const at::Tensor& tokens, int64_t height, int64_t width) {
  const int64_t rows = tokens.size(0), channels = tokens.size(2) / 4;
  return tokens.reshape({rows, height / 2, width / 2, channels, 2, 2})
      .permute({0, 3, 1, 4, 2, 5})
      .reshape({rows, channels, height, width});
}

at::Tensor image_positions(int64_t height, int64_t width, at::Device device) {
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  at::Tensor positions = at::zeros({height / 2, width / 2, 3}, options);
  positions.select(2, 1).copy_(at::arange(height / 2, options).unsqueeze(1).expand({height / 2, width / 2}));
  positions.select(2, 2).copy_(at::arange(width / 2, options).unsqueeze(0).expand({height / 2, width / 2}));
  return positions.reshape({1, height / 2 * (width / 2), 3});
}

}  // namespace titan::model::flux
