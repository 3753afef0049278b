#pragma once

#include <string>
#include <vector>

#include "controller/cli/globals.h"
#include "controller/cli/job_source.h"

namespace titan::cli {

struct BenchOptions {
  Source source;
  std::vector<std::string> variants;  // "NAME=--key value ...": more configurations, compared with the first.
  int steps = 20;                     // Measured steps of each run.
  int warmup = 5;                     // Steps before them, which are not measured.
  int repeats = 3;                    // Runs of each configuration.
  bool checkpoint = false;            // Save once in each run and measure the save.
  std::string folder;                 // Where the dump folders go; "": next to the daemons' state.
};

// Measures how fast a job trains on this machine and where its time goes. Runs it several times, each with a private
// controller and worker and a temporary dump folder, and prints the figures. Returns the exit code.
int bench(const Globals& globals, const BenchOptions& options);

}  // namespace titan::cli
