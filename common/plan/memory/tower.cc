#include "common/plan/memory/tower.h"

#include <algorithm>

#include "common/plan/memory/qwen3_vl_blocks.h"
#include "common/plan/memory/siglip2_blocks.h"
#include "common/plan/models/sizes.h"

namespace titan::memory {

std::optional<TowerMemory> tower_memory(const config::JobConfig& config, const models::ModelSpec& spec) {
  if (spec.vision) return siglip2_memory(config, *spec.vision);
  if (spec.qwen3_vl) return qwen3_vl_memory(config, spec.qwen3_vl->vision);
  return std::nullopt;
}

std::set<std::string> tower_blocks(const models::ModelSpec& spec) {
  const pipeline::ModelBlocks blocks = models::block_names(spec);
  const std::vector<std::string>& names = blocks.names();
  const auto embedding = std::find(names.begin(), names.end(), "tok_embeddings");
  if (embedding == names.end()) return {};
  return {names.begin(), embedding};
}

}  // namespace titan::memory
