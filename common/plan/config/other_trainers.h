#pragma once

// Recognizes the names that other trainers (Hugging Face's Trainer, axolotl, Megatron, Lightning, torchtune) and new
// users use for a key or a section, and PyTorch's names of sharding strategies, and suggests the keys to set instead.

#include <optional>
#include <string>
#include <string_view>

#include "common/plan/config/assign.h"
#include "common/plan/config/job_config.h"

namespace titan::config {

// Returns advice for the unknown key `name` (without its section), such as "set optimizer.lr"; empty: not known.
std::string explain_unknown_name(std::string_view name);

// Does the same for a section that does not exist.
std::string explain_section(std::string_view section);

// PyTorch's ShardingStrategy, the names of its first FSDP. Each implies a value of
// parallelism.fsdp_reshard_after_forward, and some imply how ranks share weights, which are the degrees here.
struct ShardingStrategy {
  enum class Layout { kAny, kHybrid, kReplicated };
  std::string_view name;
  std::string_view reshard_after_forward;
  Layout layout = Layout::kAny;
};

// Finds a strategy by name, or by another common name such as "ZeRO3"; null: no such strategy. Ignores case and a
// leading "ShardingStrategy.".
const ShardingStrategy* find_sharding_strategy(std::string_view name);

// Returns what is wrong, with the keys to set, if the degrees contradict the strategy.
std::optional<FieldError> check_degrees(const ShardingStrategy& strategy, const JobConfig& config);

}  // namespace titan::config
