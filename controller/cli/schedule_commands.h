#pragma once

#include <optional>
#include <string>
#include <vector>

#include "controller/cli/globals.h"
#include "controller/cli/job_source.h"

namespace titan::cli {

// What `titanctl schedule show` was asked for: a configuration, a file with a schedule, or a name with sizes.
struct ScheduleRequest {
  Source source;
  std::string csv;
  std::optional<std::string> name;  // 1F1B
  std::optional<int> ranks;         // 4
  std::optional<int> microbatches;  // 8
  std::optional<int> stages_per_rank;
  std::string costs;  // "F,I,W,transfer"; empty: 1,1,1,0.
  bool by_flops = false;
  bool pairs_overlap = false;
  std::string svg;           // File to write; empty: none.
  bool write_csv = false;    // Print the schedule as CSV instead of drawing it.
  std::optional<int> width;  // Columns of the drawing; 0: any number.
};

int show_schedule(const Globals& globals, const ScheduleRequest& request);

}  // namespace titan::cli
