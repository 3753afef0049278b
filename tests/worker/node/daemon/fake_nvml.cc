// Two devices of NVIDIA's management library. FAKE_NVML in the environment makes it fail: "init", "count" or "memory".
// A test that loads it can also inject events, lose the second device, and block nvmlInit and temperature queries.

#include "tests/worker/node/daemon/fake_nvml.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>

namespace {

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;
};
struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

constexpr int kNotSupported = 3;
constexpr int kTimeout = 10;
constexpr int kLost = 15;
constexpr int kUnknown = 999;

std::mutex mutex;
std::condition_variable changed;
std::deque<EventData> events;
bool is_lost = false, hangs = false, is_hung = false;
char devices[2];

int unless(const char* failure) {
  const char* wanted = std::getenv("FAKE_NVML");
  return wanted != nullptr && std::strcmp(wanted, failure) == 0 ? kUnknown : 0;
}

bool is_first(const void* device) { return device == &devices[0]; }

// Returns the status of a device that may be lost.
int of(const void* device) {
  const std::lock_guard lock(mutex);
  return !is_first(device) && is_lost ? kLost : 0;
}

void block_while_hung() {
  std::unique_lock lock(mutex);
  is_hung = hangs;
  changed.notify_all();
  changed.wait(lock, [] { return !hangs; });
  is_hung = false;
}

}  // namespace

extern "C" {

void fake_nvml_xid(unsigned int index, unsigned long long number) {
  const std::lock_guard lock(mutex);
  events.push_back({&devices[index], 0x8, number, 0, 0});
}

void fake_nvml_lose(bool lost) {
  const std::lock_guard lock(mutex);
  is_lost = lost;
}

void fake_nvml_hang(bool hang) {
  std::unique_lock lock(mutex);
  hangs = hang;
  changed.notify_all();
}

void fake_nvml_wait_until_hung() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return is_hung; });
}

int nvmlInit_v2() {
  block_while_hung();
  return unless("init");
}
int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return unless("count");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = &devices[index];
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = (is_first(device) ? 80ULL : 40ULL) << 30;
  memory->used = 3ULL << 30;
  memory->free = memory->total - memory->used;
  if (const int failure = unless("memory"); failure != 0) return failure;
  return of(device);
}

int nvmlDeviceGetName(void* /*device*/, char* name, unsigned int size) {
  std::snprintf(name, size, "Fake GPU 80GB");
  return 0;
}

int nvmlDeviceGetUtilizationRates(void* device, Utilization* used) {
  used->gpu = is_first(device) ? 97 : 5;
  used->memory = 40;
  return of(device);
}

int nvmlDeviceGetTemperature(void* device, int sensor, unsigned int* celsius) {
  block_while_hung();
  *celsius = 61;
  return sensor == 0 ? of(device) : kNotSupported;
}

// The second device does not support the query.
int nvmlDeviceGetPowerUsage(void* device, unsigned int* milliwatts) {
  *milliwatts = 612'500;
  return is_first(device) ? 0 : kNotSupported;
}

int nvmlDeviceGetTotalEccErrors(void* device, int kind, int counter, unsigned long long* errors) {
  *errors = kind == 0 ? 12 : 1;
  if (!is_first(device) || counter != 0) return kNotSupported;
  return 0;
}

// The first device is throttled for heat by hardware and software; the second one idles.
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = is_first(device) ? 0x8 | 0x40 : 0x1;
  return of(device);
}

// The first device has four links, three of them active.
int nvmlDeviceGetNvLinkState(void* device, unsigned int link, int* is_active) {
  if (!is_first(device) || link > 3) return kNotSupported;
  *is_active = link == 2 ? 0 : 1;
  return 0;
}

int nvmlDeviceGetNvLinkErrorCounter(void* /*device*/, unsigned int link, int counter, unsigned long long* errors) {
  *errors = link == 3 && counter == 1 ? 7 : 0;
  return counter <= 2 ? 0 : kNotSupported;
}

int nvmlEventSetCreate(void** set) {
  *set = &events;
  return 0;
}
int nvmlEventSetFree(void* /*set*/) { return 0; }
int nvmlDeviceRegisterEvents(void* /*device*/, unsigned long long types, void* /*set*/) {
  return types == 0x8 ? 0 : kNotSupported;
}

int nvmlEventSetWait_v2(void* /*set*/, EventData* event, unsigned int milliseconds) {
  const std::lock_guard lock(mutex);
  if (milliseconds != 0) std::abort();  // No caller may wait.
  if (events.empty()) return kTimeout;
  *event = events.front();
  events.pop_front();
  return 0;
}

}  // extern "C"
