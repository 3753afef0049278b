#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

#include "worker/rank/runtime/memory/cpu_history.h"

namespace titan::runtime {

struct CpuMemoryCounts {
  int64_t live_bytes = 0;    // In tensors, rounded up to size classes; blocks too small for the cache are left out.
  int64_t cached_bytes = 0;  // Freed and kept for the next tensor of the class.
  int64_t fresh_blocks = 0;  // Asked of malloc so far, those too small for the cache left out.
};

// A CPU allocator that keeps freed blocks in lists by size. Every step allocates the same sizes, so after a few steps
// nothing is asked from malloc any more. malloc alone never settles: collectives end at varying times, freed neighbours
// merge and split differently each step, and the resident set of a rank creeps up by percents over hundreds of steps.
class CpuMemory : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;

  CpuMemoryCounts counts() const;
  CpuHistory& history();  // Of the process, begun by whoever wants it.
};

// The one instance of the process: deleters are plain functions and may run at exit, so it is never destroyed.
CpuMemory& cpu_memory();

// All CPU tensors made from now on come from cpu_memory().
void use_cpu_memory();

}  // namespace titan::runtime
