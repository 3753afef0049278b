#pragma once

#include <string>
#include <vector>

#include "controller/cli/globals.h"

namespace titan::cli {

// Verbs of `titanctl node`; each returns the exit code.
int list_nodes(const Globals& globals);
int describe_node(const Globals& globals, const std::string& node);
int cordon_nodes(const Globals& globals, const std::vector<std::string>& nodes, const std::string& reason);
// Ends the ranks that a node runs for a job that the controller does not know.
int stop_unknown(const Globals& globals, const std::string& name, const std::string& job_uid, double grace_seconds);
// `wait`: returns when nothing runs there, or after --timeout. Ctrl-C ends only the wait.
int drain_nodes(const Globals& globals, const std::vector<std::string>& nodes, const std::string& reason, bool wait);
int uncordon_nodes(const Globals& globals, const std::vector<std::string>& nodes);
// `force`: the machines are known to be off, even if ranks may have run there.
int delete_nodes(const Globals& globals, const std::vector<std::string>& nodes, bool force);

}  // namespace titan::cli
