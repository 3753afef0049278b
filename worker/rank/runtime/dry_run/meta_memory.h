#pragma once

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

}  // namespace titan::runtime
