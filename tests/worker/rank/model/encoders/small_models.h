#pragma once

#include <string>
#include <vector>

#include "common/io/storage/file.h"
#include "common/plan/encoders/options.h"
#include "nlohmann/json.hpp"
#include "tests/common/plan/encoders/small_t5_config.h"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/model/encoders/autoencoder.h"
#include "worker/rank/nn/block.h"

// Small encoders and their files.
namespace titan::testing {

inline encoders::T5Options small_t5() {
  return {.vocab_size = 19, .dim = 10, .num_layers = 2, .num_heads = 3, .head_dim = 4, .ffn_hidden = 14};
}

inline encoders::ClipTextOptions small_clip() {
  return {.vocab_size = 19, .dim = 12, .num_layers = 2, .num_heads = 3, .ffn_hidden = 14, .max_tokens = 9};
}

inline encoders::AutoencoderOptions small_autoencoder() {
  return {.channels = {4, 6}, .blocks_per_level = 1, .latent_channels = 3, .norm_groups = 2};
}

inline std::vector<nn::Parameter*> parameters_of(nn::Block& block) {
  std::vector<nn::Parameter*> all;
  for (nn::Parameter& parameter : block.parameters()) all.push_back(&parameter);
  return all;
}

// Writes tensors of zeros.
inline void write_zeros(const std::string& path, std::vector<checkpoint::TensorEntry> entries) {
  const checkpoint::Layout layout = checkpoint::layout(entries).value();
  std::string bytes = layout.header;
  bytes.resize(static_cast<size_t>(layout.file_bytes), '\0');
  if (!storage::atomic_write(storage::posix_files(), path, bytes).ok())
    throw std::runtime_error("cannot write " + path);
}

}  // namespace titan::testing
