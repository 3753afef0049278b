#pragma once

// The numbers that Qwen3-VL (arXiv 2511.21631) adds to a language model of the family qwen3: the vision tower and how
// images stand in a text.

#include <array>
#include <cstdint>

#include "common/plan/models/qwen3_vl_vision.h"

namespace titan::models {

// The defaults of sections and tokens are those of the released models.
struct Qwen3VlSpec {
  Qwen3VlVisionSpec vision;
  // Every third of the first 3 * mrope_section[a] pairs of a head's channels turns by the row (a = 1) or the column
  // (a = 2) of an image, and all others by time. mrope_section[0] has no effect.
  std::array<int64_t, 3> mrope_section = {24, 20, 20};
  int64_t image_token = 151655;  // <|image_pad|>, one for each square of merged patches.
  int64_t video_token = 151656;  // <|video_pad|>
  int64_t vision_start_token = 151652, vision_end_token = 151653;

  // Layers of the language model, from the first, that add the results of a layer of the tower.
  int64_t deepstack_layers() const { return static_cast<int64_t>(vision.deepstack_layers.size()); }
};

}  // namespace titan::models
