#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/node/daemon/nvml.h"

namespace titan::daemon {

// One GPU as the driver reported it. Values that the driver does not report are left out.
struct GpuStatus {
  unsigned int index = 0;
  bool lost = false;
  std::optional<double> utilization;  // 0 to 1.
  std::optional<nvml::Memory> memory;
  std::optional<double> celsius, watts;
  std::map<std::string, unsigned long long> ecc_errors;  // By kind, since the driver was loaded.
  std::map<std::string, bool> slowed;                    // Whether the clocks are lowered, by reason.
  std::optional<int> links;                              // Number of active NVLinks.
  std::optional<unsigned long long> link_errors;         // Sum over all links.
  std::vector<unsigned long long> xids;                  // XIDs since the last read.
};

// Reads GPUs through the driver, which may take long or hang: use it on a separate thread.
class GpuReader {
 public:
  // Reads the first `devices` devices.
  GpuReader(std::string library, int devices) : file_(std::move(library)), devices_(devices) {}
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  // Errors: those of nvml::Library::open, and Unavailable when the device count cannot be read. After an error the next
  // call loads the library again.
  absl::StatusOr<std::vector<GpuStatus>> read();

 private:
  void begin_events(unsigned int count);
  void end();
  void take_events(std::vector<GpuStatus>& seen);

  const std::string file_;
  const int devices_;
  std::unique_ptr<nvml::Library> library_;
  nvml::EventSet events_ = nullptr;
  std::map<nvml::Device, unsigned int> index_of_;
};

}  // namespace titan::daemon
