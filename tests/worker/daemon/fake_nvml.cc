// Two devices of NVIDIA's management library. FAKE_NVML in the environment makes it fail: "init", "count" or "memory".

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Memory {
  unsigned long long total, free, used;
};

constexpr int kUnknown = 999;

int unless(const char* failure) {
  const char* wanted = std::getenv("FAKE_NVML");
  return wanted != nullptr && std::strcmp(wanted, failure) == 0 ? kUnknown : 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return unless("init"); }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return unless("count");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  static char devices[2];
  *device = &devices[index];
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  void* first = nullptr;
  nvmlDeviceGetHandleByIndex_v2(0, &first);
  memory->total = (device == first ? 80ULL : 40ULL) << 30;
  return unless("memory");
}

int nvmlDeviceGetName(void* /*device*/, char* name, unsigned int size) {
  std::snprintf(name, size, "Fake GPU 80GB");
  return 0;
}

}  // extern "C"
