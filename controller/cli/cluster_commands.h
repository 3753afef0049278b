#pragma once

#include <string>

#include "controller/cli/globals.h"

namespace titan::cli {

// Verbs of `titanctl cluster`; each returns the exit code.
int show_cluster(const Globals& globals);
// Writes the controller's store to `file`, which appears only when it is whole and on disk.
int back_up(const Globals& globals, const std::string& file, bool force);
struct DebugOptions {
  std::string file;                // Empty: a name with the time.
  int worker_metrics_port = 7702;  // Port of each worker's metrics page, at the node's address; 0: leave the pages out.
};
// Writes a support bundle, which lists what could not be collected.
int debug(const Globals& globals, const DebugOptions& options);
// Puts a backup into the state folder of a controller that does not run. Replaces this process by `titan-controller
// --restore`, and returns only if that cannot be started.
int restore(const std::string& file, const std::string& state);

}  // namespace titan::cli
