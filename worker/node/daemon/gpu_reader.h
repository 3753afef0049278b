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

// One GPU as its driver showed it. What it did not tell is left out.
struct GpuSeen {
  unsigned int index = 0;
  bool lost = false;
  std::optional<double> utilization;  // 0 to 1.
  std::optional<nvml::Memory> memory;
  std::optional<double> celsius, watts;
  std::map<std::string, unsigned long long> ecc_errors;  // By kind, since the driver was loaded.
  std::map<std::string, bool> slowed;                    // By reason.
  std::optional<int> links;                              // Of NVLink that are active,
  std::optional<unsigned long long> link_errors;         // and the errors of all of them.
  std::vector<unsigned long long> xids;                  // New since it was looked at before.
};

// Asks the driver, which may take its time, or all time there is: to be used beside everything else.
class GpuReader {
 public:
  // The first `devices` devices.
  GpuReader(std::string library, int devices) : file_(std::move(library)), devices_(devices) {}
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  // Errors: those of nvml::Library::open, and Unavailable when it counts no devices. Then it begins anew the next time.
  absl::StatusOr<std::vector<GpuSeen>> read();

 private:
  void begin_events(unsigned int count);
  void end();
  void take_events(std::vector<GpuSeen>& seen);

  const std::string file_;
  const int devices_;
  std::unique_ptr<nvml::Library> library_;
  nvml::EventSet events_ = nullptr;
  std::map<nvml::Device, unsigned int> index_of_;
};

}  // namespace titan::daemon
