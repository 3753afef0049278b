#include "controller/planner/remedy.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/validate.h"
#include "common/text/gibibytes.h"

namespace titan::planner {
namespace {

using config::JobConfig;

// One key's change, in a user's words.
struct Step {
  std::string text;
  std::function<void(JobConfig&)> apply;
};
using Ladder = std::vector<Step>;  // Each step goes further than the one before.

template <typename Value>
Step set(const char* key, Value value, std::function<void(JobConfig&)> apply) {
  return {absl::StrCat(key, " = ", value), std::move(apply)};
}

Ladder recompute(const JobConfig& config) {
  if (config.activation_checkpoint.mode == "full") return {};
  return {set("activation_checkpoint.mode", "\"full\"", [](JobConfig& c) { c.activation_checkpoint.mode = "full"; })};
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

Ladder more_ranks(const JobConfig& config) {
  Ladder ladder;
  for (int times = 2; times <= 64; times *= 2) {
    const int ranks = config.resources.ranks * times;
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

std::vector<Ladder> ladders(const JobConfig& c, const memory::Parts& peak) {
  const int64_t states = std::max({peak.weights, peak.gradients, peak.optimizer, peak.buffers});
  if (peak.activations > states)
    return {recompute(c), fewer_rows(c), split_matrices(c), more_ranks(c), no_copies(c), offload(c)};
  return {no_copies(c), more_ranks(c), split_matrices(c), offload(c), recompute(c), fewer_rows(c)};
}

// The job after a step, if that is a job at all. What followed from the number of ranks follows again.
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

}  // namespace

std::optional<int64_t> device_bytes(const JobConfig& config) {
  if (config.comm.mode == "fake_backend") return std::nullopt;  // Holds nothing.
  const std::optional<memory::Estimate> estimate = memory::peak_memory(config);
  if (!estimate) return std::nullopt;
  const bool shared = config.resources.device == "cpu";
  const int64_t ranks = config.resources.ranks / std::max(1, config::processes(config));
  return ranks * (estimate->peak.total() + (shared ? estimate->host : 0));
}

std::string remedy(const JobConfig& config, const memory::Parts& peak, int64_t room) {
  const std::vector<Ladder> all = ladders(config, peak);
  for (const Ladder& ladder : all) {
    for (const Step& step : ladder) {
      const std::optional<JobConfig> next = after(step, config);
      const std::optional<int64_t> bytes = next ? device_bytes(*next) : std::nullopt;
      if (bytes && *bytes <= room) return with_bytes({step.text}, *bytes);
    }
  }
  // One change is not enough: of each ladder as far as it helps.
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
      if (*bytes <= room) break;
    }
    if (!furthest) continue;
    best = *furthest;
    taken.push_back(text);
    if (*least <= room) return with_bytes(taken, *least);
  }
  return "use devices with more memory, a shorter training.seq_len or a smaller model: more ranks, recomputation and "
         "smaller batches do not help enough";
}

}  // namespace titan::planner
