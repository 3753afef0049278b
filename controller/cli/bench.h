#pragma once

#include <string>
#include <vector>

#include "controller/cli/globals.h"
#include "controller/cli/job_source.h"

namespace titan::cli {

struct BenchOptions {
  Source source;
  std::vector<std::string> variants;  // "NAME=--key value ...": more configurations, compared with the first.
  int steps = 20;                     // That count, of each run.
  int warmup = 5;                     // Before them.
  int repeats = 3;                    // Runs of each configuration.
  bool checkpoint = false;            // Save once in each run, and measure that.
  std::string folder;                 // For the dump folders; "": beside the daemons' state.
};

// How fast a job trains on this machine and where its time goes: runs it several times, each with a private controller
// and worker and a dump folder that is removed afterwards, and prints the figures. Gives the exit code.
int bench(const Globals& globals, const BenchOptions& options);

}  // namespace titan::cli
