#include "worker/node/core/launch_facts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/rank_protocol/launch.h"

namespace titan::node {

LaunchFacts facts_of(const rank_protocol::Launch& launch) {
  LaunchFacts facts;
  facts.job = launch.job;
  facts.threads_per_rank = launch.threads_per_rank;
  facts.committed_step = std::max<int64_t>(0, launch.committed_step);
  facts.previous_end_cause = launch.previous_end_cause;
  facts.previous_end_message = launch.previous_end_message;
  auto nodes = std::make_shared<std::vector<v1::NodeRow>>();
  for (rank_protocol::NodeRow& row : rank_protocol::node_rows(launch)) {
    v1::NodeRow& entry = nodes->emplace_back();
    entry.set_names(std::move(row.names));
    entry.set_ranks(row.ranks);
  }
  facts.nodes = std::move(nodes);
  return facts;
}

}  // namespace titan::node
