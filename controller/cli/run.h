#pragma once

#include "controller/cli/globals.h"
#include "controller/cli/job_source.h"

namespace titan::cli {

struct RunOptions {
  Source source;
  bool all_ranks = false;   // Show every rank's log, not only rank 0's.
  bool keep_state = false;  // Keep the private daemons' folder even after a success.
};

// Runs a job without a cluster: starts a private controller and worker, runs the job with its log, and stops everything
// at its end. The first Ctrl-C saves and stops, the second kills. Returns the exit code.
int run(const Globals& globals, const RunOptions& options);

}  // namespace titan::cli
