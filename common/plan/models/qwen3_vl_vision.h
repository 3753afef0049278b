#pragma once

// The vision tower of Qwen3-VL (arXiv 2511.21631) as numbers.

#include <cstdint>
#include <string>
#include <vector>

namespace titan::models {

// Every number that shapes the tower. The defaults are those of transformers' Qwen3VLVisionConfig.
struct Qwen3VlVisionSpec {
  int64_t dim = 1152;
  int64_t ffn_hidden = 4304;
  int64_t n_layers = 27;
  int64_t n_heads = 16;
  int64_t channels = 3;
  int64_t patch_size = 16;          // Pixels along a side of a patch.
  int64_t temporal_patch_size = 2;  // Frames of a patch. An image is repeated.
  int64_t merge = 2;                // Squares of merge x merge patches become one token.
  int64_t position_side = 48;       // The table of positions is for a grid of position_side x position_side patches.
  int64_t out_dim = 3584;           // Width of the language model.
  // Layers, ascending, of which the results also go to the first layers of the language model (DeepStack, arXiv
  // 2406.04334).
  std::vector<int64_t> deepstack_layers = {8, 16, 24};

  int64_t head_dim() const { return dim / n_heads; }
  int64_t patch_values() const { return channels * temporal_patch_size * patch_size * patch_size; }
};

// Describes the first number of a spec that is invalid or contradicts another. Empty if all are consistent.
std::string inconsistency(const Qwen3VlVisionSpec& spec);

}  // namespace titan::models
