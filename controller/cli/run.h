#pragma once

#include "controller/cli/globals.h"
#include "controller/cli/job_source.h"

namespace titan::cli {

struct RunOptions {
  Source source;
  bool all_ranks = false;   // Show every rank's log, not only rank 0's.
  bool keep_state = false;  // Leave the private daemons' folder behind also after a success.
};

// Runs a job without a cluster: a private controller and worker, the job, its log, and everything down again at its
// end. The first Ctrl-C saves and stops, the second kills.
int run(const Globals& globals, const RunOptions& options);

}  // namespace titan::cli
