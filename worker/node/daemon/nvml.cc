#include "worker/node/daemon/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::daemon::nvml {
namespace {

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Library>> Library::open(const std::string& file) {
  void* const loaded = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) return absl::NotFoundError(::dlerror());
  std::unique_ptr<Library> library(new Library(loaded));
  if (!library->find_all()) return absl::NotFoundError(absl::StrCat(file, " lacks a function: ", ::dlerror()));
  if (const int error = library->functions_.init(); error != kSuccess)
    return absl::UnavailableError(absl::StrCat(file, ": nvmlInit_v2 fails with ", error));
  library->begun_ = true;
  return library;
}

Library::~Library() {
  if (begun_) functions_.shutdown();
  ::dlclose(loaded_);
}

// Returns false if the library lacks a function that every version has.
bool Library::find_all() {
  Functions& f = functions_;
  find(loaded_, "nvmlDeviceGetUtilizationRates", f.utilization);
  find(loaded_, "nvmlDeviceGetTemperature", f.temperature);
  find(loaded_, "nvmlDeviceGetPowerUsage", f.power);
  find(loaded_, "nvmlDeviceGetTotalEccErrors", f.ecc_errors);
  find(loaded_, "nvmlDeviceGetCurrentClocksThrottleReasons", f.slowed);
  find(loaded_, "nvmlDeviceGetNvLinkState", f.link_state);
  find(loaded_, "nvmlDeviceGetNvLinkErrorCounter", f.link_errors);
  const bool events = find(loaded_, "nvmlEventSetCreate", f.make_events) &&
                      find(loaded_, "nvmlDeviceRegisterEvents", f.watch_events) &&
                      find(loaded_, "nvmlEventSetFree", f.free_events);
  if (events) find(loaded_, "nvmlEventSetWait_v2", f.next_event);
  return find(loaded_, "nvmlInit_v2", f.init) && find(loaded_, "nvmlShutdown", f.shutdown) &&
         find(loaded_, "nvmlDeviceGetCount_v2", f.count) && find(loaded_, "nvmlDeviceGetHandleByIndex_v2", f.handle) &&
         find(loaded_, "nvmlDeviceGetMemoryInfo", f.memory) && find(loaded_, "nvmlDeviceGetName", f.name);
}

}  // namespace titan::daemon::nvml

namespace titan::daemon {
namespace {

absl::StatusOr<GpuFacts> read(const nvml::Library& library, int devices) {
  unsigned int known = 0;
  if (const int error = library->count(&known); error != nvml::kSuccess)
    return absl::UnavailableError(absl::StrCat("nvmlDeviceGetCount fails with ", error));
  GpuFacts facts;
  facts.devices = static_cast<int>(known);
  for (unsigned int i = 0; i < std::min(known, static_cast<unsigned int>(devices)); ++i) {
    nvml::Device device = nullptr;
    nvml::Memory memory{};
    if (library->handle(i, &device) != nvml::kSuccess || library->memory(device, &memory) != nvml::kSuccess)
      return absl::UnavailableError(absl::StrCat("device ", i, " does not report its memory"));
    const auto total = static_cast<int64_t>(memory.total);
    facts.memory_bytes = i == 0 ? total : std::min(facts.memory_bytes, total);
    char name[nvml::kNameBytes] = {};
    if (i == 0 && library->name(device, name, nvml::kNameBytes) == nvml::kSuccess) facts.model = name;
  }
  if (facts.memory_bytes == 0) return absl::UnavailableError("it reports no device");
  return facts;
}

// Waits for the driver without a limit.
absl::StatusOr<GpuFacts> load_and_read(const std::string& library, int devices) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<nvml::Library> loaded, nvml::Library::open(library));
  absl::StatusOr<GpuFacts> facts = read(*loaded, devices);
  if (facts.ok()) return facts;
  return absl::Status(facts.status().code(), absl::StrCat(library, ": ", std::string(facts.status().message())));
}

}  // namespace

absl::StatusOr<GpuFacts> read_nvml(const std::string& library, int devices, absl::Duration timeout) {
  std::packaged_task<absl::StatusOr<GpuFacts>()> task([library, devices] { return load_and_read(library, devices); });
  std::future<absl::StatusOr<GpuFacts>> facts = task.get_future();
  std::thread(std::move(task)).detach();
  if (facts.wait_for(absl::ToChronoNanoseconds(timeout)) == std::future_status::ready) return facts.get();
  return absl::DeadlineExceededError(absl::StrCat(library, " has not answered within ", absl::FormatDuration(timeout)));
}

}  // namespace titan::daemon
