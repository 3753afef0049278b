#include "worker/node/daemon/resources.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/host/file_io.h"
#include "worker/node/daemon/nvml.h"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;
constexpr int kMaxDevices = 1024;

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

// Returns the text after the first line that starts with `key` and a colon.
std::string value_of(const std::string& path, const std::string& key) {
  const absl::StatusOr<std::string> text = host::read_file(path);
  if (!text.ok()) return "";
  const size_t at = text->rfind(key, 0) == 0 ? 0 : text->find("\n" + key);
  if (at == std::string::npos) return "";
  const size_t colon = text->find(':', at);
  const size_t end = std::min(text->find('\n', at + 1), text->size());
  if (colon == std::string::npos || colon > end) return "";
  const size_t begin = text->find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos || begin >= end ? "" : text->substr(begin, end - begin);
}

// Counts NVIDIA's devices. A container may have only devices 4 to 7 of the host, so the numbers need not start at 0.
// CUDA numbers the devices that it can open from 0.
int nvidia_devices(const std::string& device_files) {
  int count = 0;
  std::error_code error;
  const fs::path prefix(device_files);
  for (const auto& item : fs::directory_iterator(prefix.parent_path(), error)) {
    const std::string file = item.path().filename().string();
    absl::string_view name = file;
    int number = 0;
    count += absl::ConsumePrefix(&name, prefix.filename().string()) && absl::SimpleAtoi(name, &number);
  }
  if (count > 0) return std::min(count, kMaxDevices);
  for (const auto& item : fs::directory_iterator("/proc/driver/nvidia/gpus", error))
    count += item.is_directory() ? 1 : 0;
  return count;
}

// Returns the devices that the worker may use. Like CUDA, stops at the first entry that is not valid.
std::vector<std::string> entries_of(const std::string& visible) {
  std::vector<std::string> all;
  for (const absl::string_view part : absl::StrSplit(visible, ',')) {
    const absl::string_view entry = absl::StripAsciiWhitespace(part);
    if (entry.empty() || absl::StartsWith(entry, "-")) break;
    all.emplace_back(entry);
  }
  return all;
}

std::string nvidia_model() {
  std::error_code error;
  for (const auto& item : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    return value_of(item.path().string() + "/information", "Model");
  }
  return "NVIDIA";
}

void describe_gpus(const NvidiaPaths& nvidia, Resources& found) {
  // NVML ignores CUDA_VISIBLE_DEVICES, so in that case the values are those of the node's smallest device.
  const int asked = nvidia.visible ? kMaxDevices : found.devices;
  const absl::StatusOr<GpuFacts> facts = read_nvml(nvidia.nvml, asked, nvidia.timeout);
  if (absl::IsDeadlineExceeded(facts.status())) {  // Stop here: the driver's files in /proc may hang, too.
    found.driver_hangs = true;
    found.device_model = "NVIDIA, its driver does not answer";
    found.memory_unknown = std::string(facts.status().message());
    return;
  }
  found.device_model = facts.ok() && !facts->model.empty() ? facts->model : nvidia_model();
  if (facts.ok()) {
    found.devices = std::min(found.devices, facts->devices);
    found.device_memory_bytes = facts->memory_bytes;
  } else {
    found.memory_unknown = std::string(facts.status().message());
  }
}

absl::Status too_few(int asked, int there, absl::string_view by) {
  return absl::FailedPreconditionError(
      absl::StrCat("--devices requests ", asked, " CUDA devices, this node has ", there, " (", by, ")"));
}

}  // namespace

std::string Resources::visible_to_ranks(const std::vector<int>& of_ranks) const {
  if (device != "cuda") return "";
  std::vector<std::string> entries;
  for (const int number : of_ranks) {
    const auto place = static_cast<size_t>(number);
    entries.push_back(place < visible.size() ? visible[place] : absl::StrCat(number));
  }
  return absl::StrJoin(entries, ",");
}

absl::StatusOr<Resources> find_resources(const std::string& devices, const NvidiaPaths& nvidia) {
  Resources found;
  found.cpu_cores = usable_cores();
  found.memory_bytes = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  int gpus = nvidia_devices(nvidia.device_files);
  if (nvidia.visible) {
    found.visible = entries_of(*nvidia.visible);
    gpus = std::min(gpus, static_cast<int>(found.visible.size()));
  }
  if (devices == "auto") {
    found.device = gpus > 0 ? "cuda" : "cpu";
    found.devices = gpus > 0 ? gpus : found.cpu_cores;
  } else {
    const size_t colon = devices.find(':');
    found.device = devices.substr(0, colon);
    const std::string count = colon == std::string::npos ? "" : devices.substr(colon + 1);
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), found.devices);
    const bool number = error == std::errc() && end == count.data() + count.size() && !count.empty();
    if ((found.device != "cpu" && found.device != "cuda") || !number || found.devices < 1 ||
        found.devices > kMaxDevices) {
      return absl::InvalidArgumentError(
          absl::StrCat("--devices is '", devices, "', expected auto, cpu:N or cuda:N with N from 1 to ", kMaxDevices));
    }
    if (found.device == "cuda" && found.devices > gpus) {
      return too_few(
          found.devices, gpus,
          absl::StrCat("/dev/nvidia*", nvidia.visible ? ", CUDA_VISIBLE_DEVICES " : "", nvidia.visible.value_or("")));
    }
  }
  if (found.device == "cuda") {
    const int asked = found.devices;
    describe_gpus(nvidia, found);
    if (devices != "auto" && found.devices < asked)
      return too_few(asked, found.devices, "NVIDIA's driver opens no more");
  } else {
    found.device_model = value_of("/proc/cpuinfo", "model name");
    found.device_memory_bytes = found.memory_bytes / found.devices;
  }
  return found;
}

}  // namespace titan::daemon
