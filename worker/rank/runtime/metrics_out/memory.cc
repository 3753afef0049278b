#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "worker/rank/runtime/metrics_out/metrics_logger.h"

namespace titan::runtime {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Returns a "Name:   123 kB" line of /proc/self/status in bytes, or -1 if it does not exist.
double status_bytes(const char* name) {
  std::ifstream status("/proc/self/status");
  const std::string prefix = std::string(name) + ":";
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, prefix.size(), prefix) == 0) return std::stod(line.substr(prefix.size())) * 1024.0;
  }
  return -1;
}

class CpuMemoryMonitor : public MemoryMonitor {
 public:
  CpuMemoryMonitor()
      : capacity_(static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE))) {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
      if (line.compare(0, 10, "model name") != 0) continue;
      if (const size_t colon = line.find(": "); colon != std::string::npos) name_ = line.substr(colon + 2);
      break;
    }
  }

  MemoryStats peak() override {
    const double bytes = status_bytes("VmHWM");
    MemoryStats stats;
    if (bytes < 0) return stats;
    stats.max_active_gib = stats.max_reserved_gib = bytes / kGiB;
    stats.max_active_percent = stats.max_reserved_percent = 100 * bytes / capacity_;
    return stats;
  }

  // Writing 5 resets the high-water mark. If that is not allowed, the peak is that of the process so far.
  void reset_peak() override { std::ofstream("/proc/self/clear_refs") << "5"; }

  std::string device_name() const override { return name_; }

 private:
  double capacity_;
  std::string name_ = "cpu";
};

}  // namespace

std::unique_ptr<MemoryMonitor> make_cpu_memory_monitor() { return std::make_unique<CpuMemoryMonitor>(); }

}  // namespace titan::runtime
