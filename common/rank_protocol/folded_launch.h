#pragma once

#include "common/rank_protocol/launch.h"

namespace titan::rank_protocol {

// The form in which a launch may be sent to a node that does not lead and says so (Register.takes_folded_launch): names
// of nodes that have equally many ranks are told together (name_list.h), so that it does not grow with nodes that are
// counted through. Addresses are not told: ranks need that of their own node alone, which the node knows. As the
// compact form it holds a node's ranks to follow each other, with local ranks from 0. launch_from_json() reads it, with
// empty hosts.
nlohmann::json to_folded_json(const Launch& launch);

}  // namespace titan::rank_protocol
