#pragma once

// Decides when the controller itself takes a node that fails jobs out of service.

#include <cstdint>
#include <string>
#include <vector>

#include "controller/job/record.h"
#include "controller/job/restart.h"

namespace titan::job {

// True if the end was the fault of node AttemptEnd::node: it could not prepare or start its ranks, or lost them. False
// if the job, the dump folder or a lack of free devices was the cause.
bool blames_node(const AttemptEnd& end);

// Returns the nodes that the job's next attempts avoid, whether or not they were at fault.
std::vector<std::string> nodes_to_avoid(const AttemptEnd& end);

// True if another node, if there is one, is worth a try: one rank failed first, and `restarts` before this end made no
// progress.
bool is_black_hole(const AttemptEnd& end, int restarts);

// Adds nodes to those that a job avoids. If some of them were avoided already, they were used because the others could
// not hold the job, and they are at fault: the job then avoids only these, and the others are free again.
void avoid(std::vector<std::string>& avoided, const std::vector<std::string>& nodes);

// Adds a blame and drops blames that are older than a day.
void add_blame(std::vector<Blame>& blames, Blame blame);

// Returns why the node must be cordoned, for people. Empty: it need not be. Reasons within a day: it failed two jobs
// through its own fault, or was lost three times, more than a minute apart. One job that fails repeatedly may be the
// cause itself. Ranks that cannot be ended are reason enough at once.
std::string reason_to_cordon(const std::vector<Blame>& blames);

}  // namespace titan::job
