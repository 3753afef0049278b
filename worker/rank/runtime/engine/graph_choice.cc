#include "worker/rank/runtime/engine/graph_choice.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace titan::runtime {

using mesh::Reshard;
using parallel::ShardUnit;

namespace {

// Matmuls whose scales are computed with other ranks contain collectives.
bool exchanges_scales(nn::Block& block) {
  const auto exchanges = [](const nn::Parameter& weight) { return nn::recipe_of(weight).exchanges_with_ranks(); };
  const std::vector<nn::Parameter*> shared = block.shared_parameters();
  return std::any_of(block.parameters().begin(), block.parameters().end(), exchanges) ||
         std::any_of(shared.begin(), shared.end(), [&](const nn::Parameter* weight) { return exchanges(*weight); });
}

}  // namespace

// A graph cannot contain communication with other ranks, whose work is not on this device, or deferred weight
// gradients, because the next pass would overwrite what they need.
bool can_use_graphs(const ShardingOptions& options, const mesh::Mesh& mesh, device::Device& device) {
  if (!options.graphs.wanted || dynamic_cast<device::DeviceGraphs*>(&device) == nullptr) return false;
  const auto declined = [&options](const char* reason) {
    if (options.graphs.say) options.graphs.say(absl::StrCat("compile: no block runs as a device graph: ", reason));
    return false;
  };
  for (const mesh::Axis axis : {mesh::Axis::kTensor, mesh::Axis::kContext, mesh::Axis::kExpert}) {
    if (mesh.size(axis) > 1) return declined("blocks communicate with other ranks");
  }
  if (options.pipeline && options.pipeline->splits_backward) return declined("the schedule splits backward passes");
  return true;
}

// Only layers become graphs: an embedding and a head with its loss are a few operations each, and a head's logits would
// never be freed. Weights that are freed between the passes alternate between two slots, because two consecutive blocks
// are gathered at once. Weights that stay gathered have separate slots.
void choose_graphs(std::vector<std::vector<EngineBlock>>& stages, const GraphOptions& graphs, at::Device device) {
  std::map<std::tuple<size_t, size_t, std::vector<int64_t>>, std::shared_ptr<parallel::WeightSlot>> in_turn;
  const auto new_slot = [device](const std::vector<int64_t>& bytes) {
    return std::make_shared<parallel::WeightSlot>(bytes, device);
  };
  int layers = 0, exchanging = 0;
  for (std::vector<EngineBlock>& blocks : stages) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!blocks[i].layer) continue;
      ++layers;
      if (exchanges_scales(*blocks[i].block)) {
        ++exchanging;
        continue;
      }
      blocks[i].as_graph = true;
      for (size_t place = 0; place < blocks[i].units.size(); ++place) {
        ShardUnit& unit = *blocks[i].units[place];
        const std::vector<int64_t> bytes = unit.weight_bytes();
        if (bytes.empty() || unit.has_slot()) continue;
        if (unit.keep() != Reshard::kAfterForward || unit.users() > 1) {
          unit.gather_into(new_slot(bytes));
          continue;
        }
        auto& slot = in_turn[{i % 2, place, bytes}];
        if (slot == nullptr) slot = new_slot(bytes);
        unit.gather_into(slot);
      }
    }
  }
  if (exchanging > 0 && graphs.say) {
    graphs.say(absl::StrCat("compile: ", exchanging, " of ", layers,
                            " layers do not run as device graphs: their scales are computed with other ranks"));
  }
}

}  // namespace titan::runtime
