#pragma once

#include "common/rank_protocol/launch.h"

namespace titan::rank_protocol {

// Nodes that follow each other in rank order, with equally many ranks each.
struct NodeRow {
  std::string names;  // Folded (name_list.h).
  int ranks = 0;      // Of each of them.
  std::string host;   // Of a row that is one node with its address; else empty.
};

// Where an attempt's ranks are, in rank order. Names are told together, so that it does not grow with nodes that are
// counted through. `addressed`: a node that has a row with its address.
std::vector<NodeRow> node_rows(const Launch& launch, const std::string& addressed = "");

// By such rows: sent to a node that does not lead, without any address, and what a node keeps for its ranks, with its
// own alone. launch_from_json() reads it, with empty hosts.
nlohmann::json to_folded_json(const Launch& launch, const std::string& addressed = "");

}  // namespace titan::rank_protocol
