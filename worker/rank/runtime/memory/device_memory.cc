#include "worker/rank/runtime/memory/device_memory.h"

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

}  // namespace titan::runtime
