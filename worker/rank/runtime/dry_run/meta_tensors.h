#pragma once

// Makes tensors without memory (at::kMeta) behave in a dry run like tensors on CUDA: their bytes are counted, and norms
// save what a fused norm saves.

#include <cstdint>

namespace titan::runtime {

// Counts the bytes of tensors without memory (at::kMeta) like an allocator that had to provide them. Only for a process
// that does nothing but a dry run.
struct MetaMemoryCounts {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;  // Since the last reset.
};
void use_meta_memory();
MetaMemoryCounts meta_memory();
void reset_meta_peak();

// Makes norms of tensors without memory save what they save on CUDA, where a norm is one operation: its input and one
// factor per row. Without `fused` LibTorch composes them from smaller operations, as on a CPU, which save their results
// as well. Only for a process that does nothing but dry runs, one after another.
void use_fused_meta_norm(bool fused);

}  // namespace titan::runtime
