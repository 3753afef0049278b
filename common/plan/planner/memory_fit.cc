#include "common/plan/planner/memory_fit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/text/counted.h"
#include "common/base/text/gibibytes.h"
#include "common/plan/config/validate.h"
#include "common/plan/memory/estimate.h"
#include "common/plan/planner/remedy.h"

namespace titan::planner {
namespace {

std::string made_of(const memory::Estimate& estimate) {
  const memory::Parts& peak = estimate.peak;
  std::string text = absl::StrCat("weights ", gibibytes(peak.weights), ", gradients ", gibibytes(peak.gradients),
                                  ", optimizer ", gibibytes(peak.optimizer), ", activations ",
                                  gibibytes(peak.activations), ", buffers ", gibibytes(peak.buffers));
  if (estimate.host > 0) absl::StrAppend(&text, "; offloaded ", gibibytes(estimate.host));
  return text;
}

}  // namespace

std::optional<std::string> memory_misfit(const config::JobConfig& config, const std::vector<Room>& nodes) {
  int64_t roomiest = 0, devices = 0, roomy_devices = 0, roomy_nodes = 0;
  bool some_known = false;
  for (const Room& node : nodes) some_known |= node.device_memory_bytes > 0;
  if (!some_known) return std::nullopt;
  const std::optional<int64_t> needed = device_bytes(config);
  if (!needed) return std::nullopt;
  for (const Room& node : nodes) {
    devices += node.devices;
    roomiest = std::max(roomiest, node.device_memory_bytes);
    if (node.device_memory_bytes > 0 && node.device_memory_bytes < *needed) continue;
    ++roomy_nodes;
    roomy_devices += node.devices;
  }
  const int processes = config::processes(config);
  if (roomy_devices >= std::min<int64_t>(processes, devices)) return std::nullopt;
  const memory::Estimate estimate = *memory::peak_memory(config);
  std::string text = absl::StrCat(processes < config.resources.ranks ? "the process of all ranks" : "the fullest rank",
                                  " takes about ", gibibytes(*needed), " at its peak (",
                                  processes < config.resources.ranks ? "for each: " : "", made_of(estimate), ")");
  if (roomy_nodes == 0) {
    absl::StrAppend(&text, ", and a device of the roomiest node has ", gibibytes(roomiest));
  } else {
    absl::StrAppend(&text, ", and of ", counted(static_cast<int64_t>(nodes.size()), "node"), " only ", roomy_nodes,
                    roomy_nodes == 1 ? " has" : " have", " devices with so much: ", roomy_devices, " for ",
                    counted(processes, "rank"));
    // What would do on all nodes.
    roomiest = std::min_element(nodes.begin(), nodes.end(), [](const Room& a, const Room& b) {
                 return a.device_memory_bytes < b.device_memory_bytes;
               })->device_memory_bytes;
  }
  int64_t with_as_much = 0;
  for (const Room& node : nodes) {
    if (node.device_memory_bytes == 0 || node.device_memory_bytes >= roomiest) with_as_much += node.devices;
  }
  return absl::StrCat(text, "; ", remedy(config, estimate.peak, roomiest, with_as_much));
}

}  // namespace titan::planner
