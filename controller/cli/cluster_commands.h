#pragma once

#include <string>

#include "controller/cli/globals.h"

namespace titan::cli {

// Verbs of `titanctl cluster`; each gives the exit code.
int show_cluster(const Globals& globals);
// Writes the controller's store to `file`: whole and on disk, or not there.
int back_up(const Globals& globals, const std::string& file, bool force);
struct DebugOptions {
  std::string file;                // Empty: one named after the time.
  int worker_metrics_port = 7702;  // Of each node's worker, at the node's address; 0: their pages are left out.
};
// Writes a support bundle; what cannot be had is named in it.
int debug(const Globals& globals, const DebugOptions& options);
// Puts a backup into the state folder of a controller that does not run; titan-controller does it.
int restore(const std::string& file, const std::string& state);

}  // namespace titan::cli
