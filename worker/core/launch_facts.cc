#include "worker/core/launch_facts.h"

#include <memory>
#include <utility>

namespace titan::node {

LaunchFacts facts_of(const rank_protocol::Launch& launch) {
  LaunchFacts facts;
  facts.job = launch.job;
  facts.threads_per_rank = launch.threads_per_rank;
  auto placements = std::make_shared<std::vector<v1::Placement>>();
  for (const rank_protocol::RankPlace& place : launch.ranks) {
    if (placements->empty() || placements->back().node() != place.node) {
      v1::Placement& placement = placements->emplace_back();
      placement.set_node(place.node);
      placement.set_first_rank(place.rank);
    }
    placements->back().set_num_ranks(placements->back().num_ranks() + 1);
  }
  facts.placements = std::move(placements);
  return facts;
}

}  // namespace titan::node
