#pragma once

// Tensors without memory (at::kMeta) behave in a dry run as on CUDA here: their bytes are counted, and norms keep what
// a fused norm keeps.

#include <cstdint>

namespace titan::runtime {

// Counts the bytes of tensors without memory (at::kMeta), as an allocator that had to hold them would. For a process
// that does a dry run and nothing else.
struct MetaMemoryCounts {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;  // Since the last reset.
};
void use_meta_memory();
MetaMemoryCounts meta_memory();
void reset_meta_peak();

// Makes norms of tensors without memory keep what they keep on CUDA, where a norm is one operation: its input and one
// factor a row. LibTorch puts them together from smaller operations everywhere else, which keep their results as well.
// For a process that does a dry run and nothing else.
void use_fused_meta_norm();

}  // namespace titan::runtime
