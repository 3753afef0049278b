#pragma once

// The vision tower of a vision-language model as numbers: SigLIP 2's encoder for images of any shape (NaFlex, arXiv
// 2502.14786), and the projector to the width of the language model.

#include <cstdint>

namespace titan::models {

// The patches of an image. They are in row-major order everywhere.
struct PatchGrid {
  int64_t height = 0, width = 0;  // In patches.

  int64_t patches() const { return height * width; }
  bool operator==(const PatchGrid&) const = default;
};

// Every number that shapes a vision tower. The defaults are those of transformers' Siglip2VisionConfig.
struct VisionSpec {
  int64_t dim = 768;
  int64_t ffn_hidden = 3072;
  int64_t n_layers = 12;
  int64_t n_heads = 12;
  int64_t channels = 3;
  int64_t patch_size = 16;     // Pixels along a side of a patch.
  int64_t position_side = 16;  // The table of positions is for a grid of position_side x position_side patches.
  double norm_eps = 1e-6;
  int64_t out_dim = 0;  // Width of the language model, to which the projector maps. 0: no projector.

  int64_t head_dim() const { return dim / n_heads; }
  int64_t patch_values() const { return channels * patch_size * patch_size; }  // Numbers of one patch's pixels.
};

}  // namespace titan::models
