#include "worker/node/daemon/gpu_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::daemon {
namespace {

constexpr int kMaxEvents = 1000;  // Per read.

// Calls functions for one device and notes whether the device is lost.
class NvmlCaller {
 public:
  explicit NvmlCaller(GpuStatus& seen) : seen_(seen) {}

  template <typename Function, typename... Arguments>
  bool operator()(Function function, Arguments... arguments) {
    if (function == nullptr) return false;
    const int said = function(arguments...);
    if (said == nvml::kGpuIsLost) seen_.lost = true;
    return said == nvml::kSuccess;
  }

 private:
  GpuStatus& seen_;
};

void read_links(const nvml::Library& nvml, nvml::Device device, GpuStatus& seen, NvmlCaller& ask) {
  for (unsigned int link = 0; link < nvml::kMaxLinks; ++link) {
    int is_active = 0;
    if (!ask(nvml->link_state, device, link, &is_active)) return;  // This was the last link.
    seen.links = seen.links.value_or(0) + (is_active != 0 ? 1 : 0);
    if (is_active == 0) continue;
    for (const int counter : {nvml::kLinkReplay, nvml::kLinkRecovery, nvml::kLinkFlitErrors}) {
      unsigned long long errors = 0;
      if (ask(nvml->link_errors, device, link, counter, &errors))
        seen.link_errors = seen.link_errors.value_or(0) + errors;
    }
  }
}

void read_device(const nvml::Library& nvml, nvml::Device device, GpuStatus& seen) {
  NvmlCaller ask(seen);
  nvml::Utilization used{};
  nvml::Memory memory{};
  unsigned int celsius = 0, milliwatts = 0;
  unsigned long long errors = 0, reasons = 0;
  if (ask(nvml->utilization, device, &used)) seen.utilization = used.gpu / 100.0;
  if (ask(nvml->memory, device, &memory)) seen.memory = memory;
  if (ask(nvml->temperature, device, nvml::kTemperatureOfGpu, &celsius)) seen.celsius = celsius;
  if (ask(nvml->power, device, &milliwatts)) seen.watts = milliwatts / 1000.0;
  for (const auto& [kind, name] : {std::pair(nvml::kCorrected, "corrected"), {nvml::kUncorrected, "uncorrected"}}) {
    if (ask(nvml->ecc_errors, device, kind, nvml::kSinceDriverLoad, &errors)) seen.ecc_errors[name] = errors;
  }
  if (ask(nvml->slowed, device, &reasons)) {
    seen.slowed = {{"power_brake", (reasons & nvml::kPowerBrake) != 0},
                   {"power_cap", (reasons & nvml::kPowerCap) != 0},
                   {"thermal", (reasons & nvml::kThermal) != 0}};
  }
  read_links(nvml, device, seen, ask);
}

}  // namespace

GpuReader::~GpuReader() { end(); }

void GpuReader::end() {
  if (events_ != nullptr) (*library_)->free_events(events_);
  events_ = nullptr;
  index_of_.clear();
  library_.reset();
}

absl::StatusOr<std::vector<GpuStatus>> GpuReader::read() {
  const bool is_new = library_ == nullptr;
  if (is_new) {
    TITAN_ASSIGN_OR_RETURN(library_, nvml::Library::open(file_));
  }
  const nvml::Library& nvml = *library_;
  unsigned int count = 0;
  if (const int error = nvml->count(&count); error != nvml::kSuccess) {
    end();
    return absl::UnavailableError(absl::StrCat(file_, ": nvmlDeviceGetCount fails with ", error));
  }
  count = std::min(count, static_cast<unsigned int>(devices_));
  if (is_new) begin_events(count);
  std::vector<GpuStatus> all(count);
  for (unsigned int i = 0; i < count; ++i) {
    all[i].index = i;
    nvml::Device device = nullptr;
    if (NvmlCaller(all[i])(nvml->handle, i, &device)) read_device(nvml, device, all[i]);
  }
  take_events(all);
  return all;
}

// Subscribes to XIDs. Devices that do not report them are left out.
void GpuReader::begin_events(unsigned int count) {
  const nvml::Library& nvml = *library_;
  if (nvml->next_event == nullptr || nvml->make_events(&events_) != nvml::kSuccess) {
    events_ = nullptr;
    return;
  }
  for (unsigned int i = 0; i < count; ++i) {
    nvml::Device device = nullptr;
    if (nvml->handle(i, &device) != nvml::kSuccess) continue;
    if (nvml->watch_events(device, nvml::kXidEvents, events_) == nvml::kSuccess) index_of_[device] = i;
  }
}

void GpuReader::take_events(std::vector<GpuStatus>& seen) {
  if (events_ == nullptr) return;
  nvml::EventData event{};
  for (int i = 0; i < kMaxEvents && (*library_)->next_event(events_, &event, 0) == nvml::kSuccess; ++i) {
    const auto of = index_of_.find(event.device);
    if (of != index_of_.end() && of->second < seen.size()) seen[of->second].xids.push_back(event.data);
  }
}

}  // namespace titan::daemon
