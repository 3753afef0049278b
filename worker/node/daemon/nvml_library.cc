#include "worker/node/daemon/nvml_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

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

// False: one is missing that every version has.
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
