#include "worker/rank/checkpoint/formats/gguf/gguf_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace titan::checkpoint::gguf {
namespace {

constexpr float kLargestByte = 127;

// Returns the scale of each block, float32 [blocks], of `values`, float32 [blocks, kBlock].
at::Tensor block_scales(const at::Tensor& values) { return values.abs().amax(1).div(kLargestByte); }

void round_block(const float* values, float scale, char* to) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    const float rounded = std::round(values[i] * inverse);
    // A NaN has no byte; the scale, which is NaN too, makes the value NaN again.
    to[i] = static_cast<char>(std::isfinite(rounded) ? static_cast<int8_t>(rounded) : 0);
  }
}

at::Tensor encode_q8_0(const at::Tensor& values, Narrowing& narrowing) {
  TORCH_CHECK(values.size(-1) % kBlock == 0, "Q8_0 needs rows of whole blocks");
  const at::Tensor blocks = values.to(at::kFloat).contiguous().view({-1, kBlock}), scales = block_scales(blocks);
  const at::Tensor stored = narrowing.cast(scales, at::kHalf);
  const int64_t count = blocks.size(0), stride = bytes_of(Type::kQ8_0, 1, kBlock);
  at::Tensor bytes = at::empty({count * stride}, at::kByte);
  char* to = static_cast<char*>(bytes.mutable_data_ptr());
  for (int64_t i = 0; i < count; ++i, to += stride) {
    std::memcpy(to, stored.const_data_ptr<at::Half>() + i, sizeof(at::Half));
    round_block(blocks.const_data_ptr<float>() + i * kBlock, scales.const_data_ptr<float>()[i], to + sizeof(at::Half));
  }
  return bytes;
}

}  // namespace

at::Tensor encode(const at::Tensor& values, Type type, Narrowing& narrowing) {
  if (type == Type::kQ8_0) return encode_q8_0(values, narrowing);
  const at::ScalarType dtype = type == Type::kF16 ? at::kHalf : type == Type::kBF16 ? at::kBFloat16 : at::kFloat;
  return narrowing.cast(values, dtype).contiguous().view({-1}).view(at::kByte);
}

}  // namespace titan::checkpoint::gguf
