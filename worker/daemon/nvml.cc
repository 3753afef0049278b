#include "worker/daemon/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"

namespace titan::daemon {
namespace {

// nvml.h, as far as it is used; its functions and structures never change under one name.
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
constexpr int kSuccess = 0;
constexpr unsigned int kNameBytes = 96;

struct Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*handle)(unsigned int, Device*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*name)(Device, char*, unsigned int) = nullptr;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<GpuFacts> read(const Functions& nvml, int devices) {
  unsigned int known = 0;
  if (const int error = nvml.count(&known); error != kSuccess)
    return absl::UnavailableError(absl::StrCat("nvmlDeviceGetCount fails with ", error));
  GpuFacts facts;
  for (unsigned int i = 0; i < std::min(known, static_cast<unsigned int>(devices)); ++i) {
    Device device = nullptr;
    Memory memory{};
    if (nvml.handle(i, &device) != kSuccess || nvml.memory(device, &memory) != kSuccess)
      return absl::UnavailableError(absl::StrCat("device ", i, " does not tell its memory"));
    const auto total = static_cast<int64_t>(memory.total);
    facts.memory_bytes = i == 0 ? total : std::min(facts.memory_bytes, total);
    char name[kNameBytes] = {};
    if (i == 0 && nvml.name(device, name, kNameBytes) == kSuccess) facts.model = name;
  }
  if (facts.memory_bytes == 0) return absl::UnavailableError("it knows no device");
  return facts;
}

}  // namespace

absl::StatusOr<GpuFacts> read_nvml(const std::string& library, int devices) {
  const std::unique_ptr<void, int (*)(void*)> loaded(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), &::dlclose);
  if (loaded == nullptr) return absl::NotFoundError(::dlerror());
  Functions nvml;
  const bool complete =
      find(loaded.get(), "nvmlInit_v2", nvml.init) && find(loaded.get(), "nvmlShutdown", nvml.shutdown) &&
      find(loaded.get(), "nvmlDeviceGetCount_v2", nvml.count) &&
      find(loaded.get(), "nvmlDeviceGetHandleByIndex_v2", nvml.handle) &&
      find(loaded.get(), "nvmlDeviceGetMemoryInfo", nvml.memory) && find(loaded.get(), "nvmlDeviceGetName", nvml.name);
  if (!complete) return absl::NotFoundError(absl::StrCat(library, " lacks a function: ", ::dlerror()));
  if (const int error = nvml.init(); error != kSuccess)
    return absl::UnavailableError(absl::StrCat(library, ": nvmlInit_v2 fails with ", error));
  absl::StatusOr<GpuFacts> facts = read(nvml, devices);
  nvml.shutdown();
  if (facts.ok()) return facts;
  return absl::Status(facts.status().code(), absl::StrCat(library, ": ", std::string(facts.status().message())));
}

}  // namespace titan::daemon
