#pragma once

// Estimates the memory that DeepStack (arXiv 2406.04334) adds to a layer of the decoder, which gets results of a vision
// tower in additional columns of its input.

#include <cstdint>

#include "common/plan/memory/blocks.h"
#include "common/plan/models/activations.h"

namespace titan::memory {

// The input of such a layer.
struct DeepstackInput {
  int64_t own = 0;        // Bytes of the activations without additional columns, of which the layer reads a copy.
  int64_t parts = 0;      // The input is as many times as wide, at least 2. The layer adds one part to its result, and
                          // passes on those after it.
  bool keeps_own = true;  // The layer's first norm keeps the copy, and not a wider one.
};

// Add to what a plain layer keeps, and to its memory.
void add_deepstack(const DeepstackInput& input, models::BlockActivations& layer);
void add_deepstack(const DeepstackInput& input, BlockMemory& layer);

}  // namespace titan::memory
