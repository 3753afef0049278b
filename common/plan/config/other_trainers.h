#pragma once

// Recognises what other trainers (Hugging Face's Trainer, axolotl, Megatron, Lightning, torchtune) and newcomers call a
// key or a section, and PyTorch's names of sharding strategies, to say which keys to set instead.

#include <optional>
#include <string>
#include <string_view>

#include "common/plan/config/assign.h"
#include "common/plan/config/job_config.h"

namespace titan::config {

// What to do instead of the unknown key `name` (without its section), such as "set optimizer.lr"; empty: not known.
std::string explain_word(std::string_view name);

// The same for a section that does not exist.
std::string explain_section(std::string_view section);

// PyTorch's ShardingStrategy, the names of its first FSDP. Each says how long gathered weights stay, which is
// parallelism.fsdp_reshard_after_forward here, and some how ranks share weights, which the degrees say here.
struct ShardingStrategy {
  enum class Layout { kAny, kHybrid, kReplicated };
  std::string_view name;
  std::string_view reshard_after_forward;
  Layout layout = Layout::kAny;
};

// In any case, also as "ShardingStrategy.FULL_SHARD"; null: no strategy has that name.
const ShardingStrategy* find_sharding_strategy(std::string_view name);

// What is wrong with degrees that do not say what the strategy says, with the keys to set.
std::optional<Complaint> check_degrees(const ShardingStrategy& strategy, const JobConfig& config);

}  // namespace titan::config
