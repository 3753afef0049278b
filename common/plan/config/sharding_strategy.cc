#include "common/plan/config/sharding_strategy.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::config {
namespace {

using Layout = ShardingStrategy::Layout;

constexpr ShardingStrategy kStrategies[] = {
    {"FULL_SHARD", "always"},
    {"SHARD_GRAD_OP", "never"},
    {"HYBRID_SHARD", "always", Layout::kHybrid},
    {"_HYBRID_SHARD_ZERO2", "never", Layout::kHybrid},
    {"NO_SHARD", "default", Layout::kReplicated},
    // Other names of the same.
    {"FSDP", "always"},
    {"ZERO3", "always"},
    {"ZERO2", "never"},
    {"HSDP", "always", Layout::kHybrid},
    {"DDP", "default", Layout::kReplicated},
};

// Ranks that the other axes leave to data parallelism.
int data_ranks(const JobConfig& config) {
  const Parallelism& p = config.parallelism;
  const int others = p.tensor_parallel_degree * p.pipeline_parallel_degree * p.context_parallel_degree;
  return others > 0 ? config.resources.ranks / others : 0;
}

std::string degrees(const std::string& replicate, const std::string& shard) {
  return absl::StrCat("set parallelism.data_parallel_replicate_degree = ", replicate,
                      " and parallelism.data_parallel_shard_degree = ", shard);
}

// One copy a node, where the configuration says how many ranks a node has.
std::string hybrid_degrees(const JobConfig& config) {
  const int ranks = data_ranks(config), node = config.resources.ranks_per_node;
  if (node > 1 && ranks > node && ranks % node == 0) return degrees(absl::StrCat(ranks / node), absl::StrCat(node));
  return degrees("NODES", "RANKS_PER_NODE");
}

}  // namespace

const ShardingStrategy* find_sharding_strategy(std::string_view name) {
  std::string wanted = absl::AsciiStrToUpper(std::string(name));
  if (absl::StartsWith(wanted, "SHARDINGSTRATEGY.")) wanted.erase(0, wanted.find('.') + 1);
  for (const ShardingStrategy& strategy : kStrategies) {
    const bool same = strategy.name == wanted || (strategy.name[0] == '_' && strategy.name.substr(1) == wanted);
    if (same) return &strategy;
  }
  return nullptr;
}

std::optional<Complaint> check_degrees(const ShardingStrategy& strategy, const JobConfig& config) {
  const Parallelism& p = config.parallelism;
  const int copies = p.data_parallel_replicate_degree, shards = p.data_parallel_shard_degree;
  const int ranks = data_ranks(config);
  if (strategy.layout == Layout::kHybrid) {
    const bool shared = shards > 1 || (shards == -1 && copies > 0 && ranks / copies > 1);
    if (copies > 1 && shared) return std::nullopt;
    return Complaint{"shards inside groups of ranks and replicates across them, which the degrees do not say",
                     hybrid_degrees(config)};
  }
  if (strategy.layout == Layout::kReplicated) {
    if (shards == 1 || (shards == -1 && copies == ranks)) return std::nullopt;
    return Complaint{"gives every rank all weights, which the degrees do not say", degrees(absl::StrCat(ranks), "1")};
  }
  return std::nullopt;
}

}  // namespace titan::config
