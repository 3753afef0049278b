#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/rank/data/images/image.h"

namespace titan::images {

// Writes a square part of a picture for the training of a diffusion model, as torchtitan's Flux does: resizes the
// shorter side to `size` (resize_bicubic, in the picture's mode), cuts `size` pixels at a random place of the longer
// side, converts to RGB, and scales to [-1, 1].
//
// draw: returns a random integer of [0, n) for n >= 1; called once for each picture that is large enough, before
// decisions that depend on pixels.
// out: [3, size, size].
// Errors: OutOfRange if a side is shorter than `size`, which callers count and skip; nothing is drawn then.
absl::Status write_square_crop(const Image& image, int size, absl::FunctionRef<int64_t(int64_t n)> draw, float* out);

}  // namespace titan::images
