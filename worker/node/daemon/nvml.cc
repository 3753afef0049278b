#include "worker/node/daemon/nvml.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/node/daemon/nvml_library.h"

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
      return absl::UnavailableError(absl::StrCat("device ", i, " does not tell its memory"));
    const auto total = static_cast<int64_t>(memory.total);
    facts.memory_bytes = i == 0 ? total : std::min(facts.memory_bytes, total);
    char name[nvml::kNameBytes] = {};
    if (i == 0 && library->name(device, name, nvml::kNameBytes) == nvml::kSuccess) facts.model = name;
  }
  if (facts.memory_bytes == 0) return absl::UnavailableError("it knows no device");
  return facts;
}

// For as long as the driver takes.
absl::StatusOr<GpuFacts> load_and_read(const std::string& library, int devices) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<nvml::Library> loaded, nvml::Library::open(library));
  absl::StatusOr<GpuFacts> facts = read(*loaded, devices);
  if (facts.ok()) return facts;
  return absl::Status(facts.status().code(), absl::StrCat(library, ": ", std::string(facts.status().message())));
}

}  // namespace

absl::StatusOr<GpuFacts> read_nvml(const std::string& library, int devices, absl::Duration patience) {
  std::packaged_task<absl::StatusOr<GpuFacts>()> task([library, devices] { return load_and_read(library, devices); });
  std::future<absl::StatusOr<GpuFacts>> facts = task.get_future();
  std::thread(std::move(task)).detach();
  if (facts.wait_for(absl::ToChronoNanoseconds(patience)) == std::future_status::ready) return facts.get();
  return absl::DeadlineExceededError(
      absl::StrCat(library, " has not answered within ", absl::FormatDuration(patience)));
}

}  // namespace titan::daemon
