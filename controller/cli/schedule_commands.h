#pragma once

#include <string>
#include <vector>

#include "controller/cli/globals.h"
#include "controller/cli/job_source.h"

namespace titan::cli {

// What `titanctl schedule show` was asked for: a configuration, a file with a schedule, or a name with sizes.
struct ScheduleRequest {
  Source source;
  std::string csv;
  std::string name = "1F1B";
  int ranks = 4;
  int microbatches = 8;
  int stages_per_rank = 0;  // 0: the schedule's default.
  std::string costs;        // "F,I,W,transfer"; empty: 1,1,1,0.
  bool pairs_overlap = false;
  std::string svg;         // File to write; empty: none.
  bool write_csv = false;  // Print the schedule as CSV instead of drawing it.
};

int show_schedule(const Globals& globals, const ScheduleRequest& request);

}  // namespace titan::cli
