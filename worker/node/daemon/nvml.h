#pragma once

// Loads NVIDIA's management library while the daemon runs, and asks it for the node's GPUs. The library comes with the
// driver, so nothing is linked.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::daemon::nvml {

inline constexpr char kLibrary[] = "libnvidia-ml.so.1";

using Device = void*;
using EventSet = void*;

// What functions return.
inline constexpr int kSuccess = 0;
inline constexpr int kGpuIsLost = 15;  // It fell off its bus, or is not accessible any more.

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;  // Percent of the last sample's time.
};
struct EventData {
  Device device;
  unsigned long long type, data;  // Data: the XID's number.
  unsigned int gpu_instance, compute_instance;
};

inline constexpr unsigned int kNameBytes = 96;
inline constexpr int kTemperatureOfGpu = 0;
inline constexpr int kCorrected = 0, kUncorrected = 1;  // Errors of memory.
inline constexpr int kSinceDriverLoad = 0;              // Or for the device's life: 1.
inline constexpr unsigned int kMostLinks = 18;          // Of NVLink.
inline constexpr int kLinkRecovery = 1, kLinkReplay = 0, kLinkFlitErrors = 2;
inline constexpr unsigned long long kXidEvents = 0x8;
// Why clocks are lower than they could be.
inline constexpr unsigned long long kPowerCap = 0x4, kThermal = 0x20 | 0x40, kPowerBrake = 0x80;

// The C interface, as far as it is used here. A function never changes under one name.
struct Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*handle)(unsigned int, Device*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*name)(Device, char*, unsigned int) = nullptr;
  // Null where the library lacks them.
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

// Loaded and begun; ended with this object.
class Library {
 public:
  // Errors: NotFound when it cannot be loaded or lacks a function that every version has, Unavailable when it cannot
  // begin.
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
  int devices = 0;           // That the driver opens for this process: a container's own, none that has failed.
  int64_t memory_bytes = 0;  // Of the device that has least.
  std::string model;         // Of the first.
};

// What NVIDIA's management library says of the first `devices` devices, or of fewer when it knows fewer. Errors: those
// of nvml::Library::open, Unavailable when it knows no device, and DeadlineExceeded when it has not answered within
// `patience`: a driver that hangs keeps the thread that asked it, and nobody else.
absl::StatusOr<GpuFacts> read_nvml(const std::string& library, int devices, absl::Duration patience);

}  // namespace titan::daemon
