#include "common/plan/planner/memory_fit.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/validate.h"
#include "common/plan/memory/estimate.h"

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

std::optional<std::string> memory_misfit(const config::JobConfig& config, const std::vector<NodeMemory>& nodes) {
  int64_t capacity = 0, devices = 0, fitting_devices = 0, fitting_nodes = 0;
  bool some_known = false;
  for (const NodeMemory& node : nodes) some_known |= node.device_memory_bytes > 0;
  if (!some_known) return std::nullopt;
  const std::optional<int64_t> needed = device_bytes(config);
  if (!needed) return std::nullopt;
  for (const NodeMemory& node : nodes) {
    devices += node.devices;
    capacity = std::max(capacity, node.device_memory_bytes);
    if (node.device_memory_bytes > 0 && node.device_memory_bytes < *needed) continue;
    ++fitting_nodes;
    fitting_devices += node.devices;
  }
  const int processes = config::processes(config);
  if (fitting_devices >= std::min<int64_t>(processes, devices)) return std::nullopt;
  const memory::Estimate estimate = *memory::peak_memory(config);
  std::string text =
      absl::StrCat(processes < config.resources.ranks ? "the process that runs all ranks" : "the fullest rank",
                   " takes about ", gibibytes(*needed), " at its peak (",
                   processes < config.resources.ranks ? "for each rank: " : "", made_of(estimate), ")");
  if (fitting_nodes == 0) {
    absl::StrAppend(&text, ", but the largest device has ", gibibytes(capacity));
  } else {
    absl::StrAppend(&text, ", and of ", counted(static_cast<int64_t>(nodes.size()), "node"), " only ", fitting_nodes,
                    fitting_nodes == 1 ? " has" : " have", " devices with that much: ", fitting_devices, " for ",
                    counted(processes, "rank"));
    // The remedy must fit on every node.
    capacity = std::min_element(nodes.begin(), nodes.end(), [](const NodeMemory& a, const NodeMemory& b) {
                 return a.device_memory_bytes < b.device_memory_bytes;
               })->device_memory_bytes;
  }
  int64_t with_as_much = 0;
  for (const NodeMemory& node : nodes) {
    if (node.device_memory_bytes == 0 || node.device_memory_bytes >= capacity) with_as_much += node.devices;
  }
  return absl::StrCat(text, "; ", remedy(config, estimate.peak, capacity, with_as_much));
}

namespace {

using config::JobConfig;

// One change of a configuration key, as text and as code.
struct Step {
  std::string text;
  std::function<void(JobConfig&)> apply;
};
using Ladder = std::vector<Step>;  // Each step saves more than the one before.

template <typename Value>
Step set(const char* key, Value value, std::function<void(JobConfig&)> apply) {
  return {absl::StrCat(key, " = ", value), std::move(apply)};
}

Ladder recompute(const JobConfig& config) {
  const bool all = config.activation_checkpoint.layers.empty();
  if (config.activation_checkpoint.mode == "full" && all) return {};
  Ladder ladder;
  if (config.activation_checkpoint.mode != "full") {
    ladder.push_back(
        set("activation_checkpoint.mode", "\"full\"", [](JobConfig& c) { c.activation_checkpoint.mode = "full"; }));
  }
  if (!all) {
    ladder.push_back({"activation_checkpoint.mode = \"full\" without activation_checkpoint.layers", [](JobConfig& c) {
                        c.activation_checkpoint.mode = "full";
                        c.activation_checkpoint.layers.clear();
                      }});
  }
  return ladder;
}

Ladder fewer_rows(const JobConfig& config) {
  Ladder ladder;
  const bool pipeline = config.parallelism.pipeline_parallel_degree > 1;
  const int64_t rows =
      pipeline ? config.parallelism.pipeline_parallel_microbatch_size : config.training.local_batch_size;
  for (int64_t fewer = rows / 2; fewer >= 1; fewer /= 2) {
    if (pipeline) {
      ladder.push_back(set("parallelism.pipeline_parallel_microbatch_size", fewer, [fewer](JobConfig& c) {
        c.parallelism.pipeline_parallel_microbatch_size = static_cast<int>(fewer);
      }));
    } else {
      ladder.push_back(
          set("training.local_batch_size", fewer, [fewer](JobConfig& c) { c.training.local_batch_size = fewer; }));
    }
  }
  return ladder;
}

Ladder no_copies(const JobConfig& config) {
  if (config.parallelism.data_parallel_replicate_degree == 1) return {};
  return {set("parallelism.data_parallel_replicate_degree", 1,
              [](JobConfig& c) { c.parallelism.data_parallel_replicate_degree = 1; })};
}

// Stops at the number of devices: 512 ranks do not help a user with four.
Ladder more_ranks(const JobConfig& config, int64_t devices) {
  Ladder ladder;
  for (int times = 2; times <= 64; times *= 2) {
    const int ranks = config.resources.ranks * times;
    if (ranks > devices) break;
    ladder.push_back(set("resources.ranks", ranks, [ranks](JobConfig& c) { c.resources.ranks = ranks; }));
  }
  return ladder;
}

Ladder split_matrices(const JobConfig& config) {
  Ladder ladder;
  for (int degree = 2 * config.parallelism.tensor_parallel_degree; degree <= 8; degree *= 2) {
    ladder.push_back(set("parallelism.tensor_parallel_degree", degree,
                         [degree](JobConfig& c) { c.parallelism.tensor_parallel_degree = degree; }));
  }
  return ladder;
}

Ladder offload(const JobConfig& config) {
  if (config.resources.device == "cpu" || config.training.enable_cpu_offload) return {};
  return {set("training.enable_cpu_offload", "true", [](JobConfig& c) { c.training.enable_cpu_offload = true; })};
}

std::vector<Ladder> ladders(const JobConfig& c, const memory::Parts& peak, int64_t devices) {
  const int64_t states = std::max({peak.weights, peak.gradients, peak.optimizer, peak.buffers});
  if (peak.activations > states)
    return {recompute(c), fewer_rows(c), split_matrices(c), more_ranks(c, devices), no_copies(c), offload(c)};
  return {no_copies(c), more_ranks(c, devices), split_matrices(c), offload(c), recompute(c), fewer_rows(c)};
}

// Returns the job after a step, if it is valid. Recomputes the shard degree, which follows from the number of ranks.
std::optional<JobConfig> after(const Step& step, JobConfig config) {
  step.apply(config);
  config.parallelism.data_parallel_shard_degree = -1;
  if (!config::check(config).empty()) return std::nullopt;
  config::resolve(config);
  return config;
}

std::string with_bytes(const std::vector<std::string>& steps, int64_t bytes) {
  return absl::StrCat("set ", absl::StrJoin(steps, " and "), ", which takes about ", gibibytes(bytes));
}

// Tries each single step, then combines the ladders, each as far as it helps.
std::optional<std::string> change_that_fits(const JobConfig& config, const std::vector<Ladder>& all, int64_t limit) {
  for (const Ladder& ladder : all) {
    for (const Step& step : ladder) {
      const std::optional<JobConfig> next = after(step, config);
      const std::optional<int64_t> bytes = next ? device_bytes(*next) : std::nullopt;
      if (bytes && *bytes <= limit) return with_bytes({step.text}, *bytes);
    }
  }
  JobConfig best = config;
  std::optional<int64_t> least = device_bytes(config);
  std::vector<std::string> taken;
  for (const Ladder& ladder : all) {
    std::optional<JobConfig> furthest;
    std::string text;
    for (const Step& step : ladder) {
      const std::optional<JobConfig> next = after(step, best);
      const std::optional<int64_t> bytes = next ? device_bytes(*next) : std::nullopt;
      if (!bytes || *bytes >= *least) continue;
      furthest = next, least = bytes, text = step.text;
      if (*bytes <= limit) break;
    }
    if (!furthest) continue;
    best = *furthest;
    taken.push_back(text);
    if (*least <= limit) return with_bytes(taken, *least);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> device_bytes(const JobConfig& config) {
  if (config.comm.mode == "fake_backend") return std::nullopt;  // Its tensors have no memory.
  const std::optional<memory::Estimate> estimate = memory::peak_memory(config);
  if (!estimate) return std::nullopt;
  const bool shared = config.resources.device == "cpu";
  const int64_t ranks = config.resources.ranks / std::max(1, config::processes(config));
  return ranks * (estimate->peak.total() + (shared ? estimate->host : 0));
}

std::string remedy(const JobConfig& config, const memory::Parts& peak, int64_t limit, int64_t devices) {
  if (const auto found = change_that_fits(config, ladders(config, peak, devices), limit)) return *found;
  const std::vector<Ladder> with_more = ladders(config, peak, std::numeric_limits<int64_t>::max());
  if (const auto found = change_that_fits(config, with_more, limit)) {
    return absl::StrCat("no change fits the job into the ", counted(devices, "device"), " of that size that ",
                        devices == 1 ? "exists" : "exist", "; with enough more of them, ", *found);
  }
  return "use devices with more memory, a shorter training.seq_len or a smaller model: more ranks, recomputation and "
         "smaller batches do not help enough";
}

}  // namespace titan::planner
