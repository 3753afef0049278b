#pragma once

// When a node that fails jobs is taken out of service by the controller itself.

#include <cstdint>
#include <string>
#include <vector>

#include "controller/job/record.h"
#include "controller/job/restart.h"

namespace titan::job {

// The end was the doing of its node (AttemptEnd::node): it could not prepare or start its ranks, or lost them. Not of
// the job, not of the dump folder, and not for want of free devices.
bool blames_node(const AttemptEnd& end);

// The nodes that another attempt of the same job had better leave alone first, whoever was to blame.
std::vector<std::string> nodes_to_avoid(const AttemptEnd& end);

// One rank there failed first, as it may by anybody's fault: worth another place when `restarts` before this end had
// made no progress, and there is one.
bool is_black_hole(const AttemptEnd& end, int restarts);

// Adds nodes to those that a job avoids. Some that were avoided, and used all the same since the others could not hold
// the job, are the ones: the others had it now without them, and are free again.
void avoid(std::vector<std::string>& avoided, const std::vector<std::string>& nodes);

// Adds a blame and drops those of more than a day ago.
void add_blame(std::vector<Blame>& blames, Blame blame);

// Why the node is to be cordoned, for people; empty: it is not. Two jobs that failed there by its doing, or three
// losses that were more than a minute apart, within a day. One job that fails again and again may be the cause itself.
// Ranks that cannot be ended are the node's matter at once.
std::string reason_to_cordon(const std::vector<Blame>& blames);

}  // namespace titan::job
