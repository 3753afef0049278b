#include "worker/rank/comm/make_device.h"

#include <ATen/native/Resize.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/io/storage/standard_paths.h"
#include "worker/rank/comm/backend_aborts.h"
#include "worker/rank/comm/gloo.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/comm/point_to_point_backend.h"
#include "worker/rank/comm/shared_memory_backend.h"
#include "worker/rank/comm/shared_memory_group.h"

namespace titan::comm {
namespace {

class CpuDevice : public device::Device {
 public:
  at::Device torch_device() const override { return at::kCPU; }

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    auto sockets = c10::make_intrusive<PointToPointBackend>(make_gloo_backend(options), options.timeout);
    return through_shared_memory(std::move(sockets), options, groups_);
  }

  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override {
    at::native::resize_bytes_cpu(&storage, static_cast<size_t>(bytes));
  }

  int64_t peak_memory_bytes() const override {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * 1024;
  }

  int64_t total_memory_bytes() const override {
    return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  }

 private:
  const std::shared_ptr<SharedMemoryGroups> groups_ = std::make_shared<SharedMemoryGroups>();
};

// Returns the path of the installed library, or only its name, which the loader then searches for.
std::string cuda_library() {
  const std::string path = storage::installed_file(kCudaLibrary);
  return path.empty() ? kCudaLibrary : path;
}

void* load_cuda() { return dlopen(cuda_library().c_str(), RTLD_NOW | RTLD_GLOBAL); }

absl::StatusOr<std::unique_ptr<device::Device>> load_cuda_device(int local_index) {
  void* library = load_cuda();
  if (library == nullptr) {
    return absl::UnimplementedError(absl::StrCat("resources.device = \"cuda\": cannot load ", kCudaLibrary, " (",
                                                 dlerror(), "); build with TITAN_CUDA=ON and install the CUDA wheels"));
  }
  auto factory = reinterpret_cast<CudaFactory>(dlsym(library, kCudaFactorySymbol));
  if (factory == nullptr) {
    return absl::InternalError(absl::StrCat(kCudaLibrary, " does not export ", kCudaFactorySymbol));
  }
  try {
    return std::unique_ptr<device::Device>(factory(local_index));
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(absl::StrCat("CUDA device ", local_index, ": ", describe(error)));
  }
}

}  // namespace

void hold_watchdogs() {
  if (auto hold = reinterpret_cast<HoldWatchdogs>(dlsym(RTLD_DEFAULT, kHoldWatchdogsSymbol))) hold();
}

void before_watchdogs_end(std::function<void(const std::string& words)> call) {
  if (auto set = reinterpret_cast<BeforeWatchdogsEnd>(dlsym(RTLD_DEFAULT, kBeforeWatchdogsEndSymbol))) {
    set(std::move(call));
  }
}

std::vector<std::string> cuda_addresses() {
  void* library = load_cuda();
  if (library == nullptr) return {};
  auto addresses = reinterpret_cast<CudaAddresses>(dlsym(library, kCudaAddressesSymbol));
  return addresses == nullptr ? std::vector<std::string>{} : addresses();
}

std::unique_ptr<device::Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

absl::StatusOr<std::unique_ptr<device::Device>> make_device(const std::string& name, int local_index) {
  if (name == "cpu") return make_cpu_device();
  if (name == "cuda") return load_cuda_device(local_index);
  return absl::InvalidArgumentError(absl::StrCat("resources.device: \"", name, "\" is not one of cpu, cuda"));
}

}  // namespace titan::comm
