#include "worker/rank/runtime/memory/memory_history.h"

#include "worker/rank/runtime/memory/cpu_memory.h"

namespace titan::runtime {

MemoryHistory::MemoryHistory(device::Device& device, size_t most_events) : device_(device) {
  const device::ScopesNow scopes = [this] { return scopes_.now(); };
  if (device_.torch_device().is_cpu()) {
    cpu_memory().history().begin(most_events, scopes);
  } else {
    device_.record_memory(most_events, scopes);
  }
}

MemoryHistory::~MemoryHistory() {
  if (device_.torch_device().is_cpu()) {
    cpu_memory().history().end();
  } else {
    device_.record_memory(0, nullptr);
  }
}

device::MemorySnapshot MemoryHistory::snapshot() const {
  device::MemorySnapshot snapshot =
      device_.torch_device().is_cpu() ? cpu_memory().history().snapshot() : device_.memory_snapshot();
  snapshot.scopes = scopes_.stacks();
  return snapshot;
}

}  // namespace titan::runtime
