#include "worker/rank/runtime/memory/device_memory.h"

#include "worker/rank/runtime/memory/cpu_memory.h"

namespace titan::runtime {
namespace {

class DeviceMemoryMonitor : public MemoryMonitor {
 public:
  explicit DeviceMemoryMonitor(device::Device& device) : device_(device) {}

  MemoryStats peak() override {
    constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
    const device::DeviceMemory memory = device_.memory();
    const auto total = static_cast<double>(device_.total_memory_bytes());
    MemoryStats stats;
    stats.max_active_gib = static_cast<double>(memory.peak_active) / kGiB;
    stats.max_reserved_gib = static_cast<double>(memory.peak_reserved) / kGiB;
    stats.max_active_percent = 100 * static_cast<double>(memory.peak_active) / total;
    stats.max_reserved_percent = 100 * static_cast<double>(memory.peak_reserved) / total;
    stats.num_alloc_retries = memory.allocation_retries;
    stats.num_ooms = memory.out_of_memory;
    return stats;
  }

  void reset_peak() override { device_.reset_peak_memory(); }
  std::string device_name() const override { return device_.name(); }

 private:
  device::Device& device_;
};

}  // namespace

std::unique_ptr<MemoryMonitor> make_memory_monitor(device::Device& device) {
  if (device.torch_device().is_cpu()) return nullptr;
  return std::make_unique<DeviceMemoryMonitor>(device);
}

MemoryHistory::MemoryHistory(device::Device& device, size_t max_events) : device_(device) {
  const device::ScopesNow scopes = [this] { return scopes_.now(); };
  if (device_.torch_device().is_cpu()) {
    cpu_memory().history().begin(max_events, scopes);
  } else {
    device_.record_memory(max_events, scopes);
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
