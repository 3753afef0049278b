#pragma once

// Loads NVIDIA's management library (NVML) at run time and queries the node's GPUs. The library comes with the driver,
// so it is not linked.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::daemon::nvml {

inline constexpr char kLibrary[] = "libnvidia-ml.so.1";

using Device = void*;
using EventSet = void*;

// Return values.
inline constexpr int kSuccess = 0;
inline constexpr int kGpuIsLost = 15;  // The GPU fell off the bus or is otherwise not accessible.

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;  // Percent of the last sampling period.
};
struct EventData {
  Device device;
  unsigned long long type, data;  // Data: the XID.
  unsigned int gpu_instance, compute_instance;
};

inline constexpr unsigned int kNameBytes = 96;
inline constexpr int kTemperatureOfGpu = 0;
inline constexpr int kCorrected = 0, kUncorrected = 1;  // Kinds of memory errors.
// Counter since the driver was loaded. The value for the device's life is 1.
inline constexpr int kSinceDriverLoad = 0;
inline constexpr unsigned int kMaxLinks = 18;  // NVLinks per device.
inline constexpr int kLinkRecovery = 1, kLinkReplay = 0, kLinkFlitErrors = 2;
inline constexpr unsigned long long kXidEvents = 0x8;
// Reasons for lowered clocks.
inline constexpr unsigned long long kPowerCap = 0x4, kThermal = 0x20 | 0x40, kPowerBrake = 0x80;

// The part of NVML's C interface that is used here. A function that keeps its name never changes.
struct Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*handle)(unsigned int, Device*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*name)(Device, char*, unsigned int) = nullptr;
  // Null if the library lacks them.
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*temperature)(Device, int sensor, unsigned int* celsius) = nullptr;
  int (*power)(Device, unsigned int* milliwatts) = nullptr;
  int (*ecc_errors)(Device, int kind, int counter, unsigned long long*) = nullptr;
  int (*slowed)(Device, unsigned long long* reasons) = nullptr;
  int (*link_state)(Device, unsigned int link, int* is_active) = nullptr;
  int (*link_errors)(Device, unsigned int link, int counter, unsigned long long*) = nullptr;
  int (*make_events)(EventSet*) = nullptr;
  int (*watch_events)(Device, unsigned long long types, EventSet) = nullptr;
  int (*next_event)(EventSet, EventData*, unsigned int milliseconds) = nullptr;
  int (*free_events)(EventSet) = nullptr;
};

// A loaded and initialized library. The destructor shuts it down.
class Library {
 public:
  // Errors: NotFound when the library cannot be loaded or lacks a required function, Unavailable when it cannot be
  // initialized.
  static absl::StatusOr<std::unique_ptr<Library>> open(const std::string& file);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const Functions* operator->() const { return &functions_; }

 private:
  explicit Library(void* loaded) : loaded_(loaded) {}
  bool find_all();

  void* const loaded_;
  Functions functions_;
  bool begun_ = false;
};

}  // namespace titan::daemon::nvml

namespace titan::daemon {

struct GpuFacts {
  // Devices that the driver opens for this process: in a container the container's devices, without failed ones.
  int devices = 0;
  int64_t memory_bytes = 0;  // Memory of the smallest device.
  std::string model;         // Model of the first device.
};

// Queries NVML about the first `devices` devices, or fewer if there are fewer. Errors: those of nvml::Library::open,
// Unavailable without devices, and DeadlineExceeded without an answer within `timeout`. A hanging driver then blocks
// only the thread that queried it.
absl::StatusOr<GpuFacts> read_nvml(const std::string& library, int devices, absl::Duration timeout);

}  // namespace titan::daemon
