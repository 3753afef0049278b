#pragma once

// Collects what the runs of `titanctl bench` measured, and reports it as a table and as JSON.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

// What one run measured, by name (kinds()); what is not known is not there. Seconds, bytes, tokens a second.
using Figures = std::map<std::string, double, std::less<>>;

// A figure for people: `value * scale` with `digits` after the point.
struct Kind {
  const char* name;
  const char* label;
  double scale;
  int digits;
  bool of_step = false;  // A part of the step's time: shown with its share.
};
// In the order of the table.
const std::vector<Kind>& kinds();

// Of one job, as its dump folder has it.
struct RunRecord {
  std::string metrics;                          // metrics.jsonl; each step logged.
  absl::Time launched;                          // When the daemons were about to be started.
  int ranks = 1;                                // Of the job.
  int warmup = 0;                               // Steps that do not count.
  bool on_cpu = true;                           // Else the memory figures are a device's.
  int saved_step = 0;                           // Whose checkpoint is measured; 0: none.
  double saved_bytes = 0;                       // What its files hold,
  absl::Time published = absl::InfinitePast();  // and when its manifest was written.
};

// `step_seconds` is the median of the steps that count, `tokens_per_second` a rank's tokens of a step in that time;
// phases are means over these steps; a step that came after a save is none of them. Errors: DataLoss when a step that
// counts was not logged or the lines are of another form.
absl::StatusOr<Figures> figures_of(const RunRecord& record);

struct Spread {
  double median = 0, least = 0, greatest = 0;
};
double median(std::vector<double> values);         // Of at least one.
Spread spread(const std::vector<double>& values);  // Of at least one.

// The runs of one configuration, in order of rounds.
struct Measured {
  std::string name;
  std::vector<std::string> overrides;
  std::vector<Figures> runs;
};

// Over the runs that know the figure; nothing when none does.
std::optional<Spread> spread_of(const Measured& measured, std::string_view name);

// Round by round `measured` over `first`, so that what hit a whole round cancels; nothing when a run lacks the figure
// or the first one's is zero.
std::optional<Spread> ratio_of(const Measured& measured, const Measured& first, std::string_view name);

// Rows of cells, the header first: a row a figure that some run knows, a column a configuration, and beside each but
// the first its ratio to the first. "1,234 (1,200 to 1,260)": the median, and of several runs the least and the
// greatest.
std::vector<std::vector<std::string>> table_rows(const std::vector<Measured>& all);

// {"configurations": [{"name", "overrides", "runs": [{figure: value}], "figures": {figure: {"median", "least",
// "greatest"}}, "ratios": the same, to the first; not in the first}]}
nlohmann::ordered_json report_json(const std::vector<Measured>& all);

// "12,345.7"
std::string grouped(double value, int digits);

}  // namespace titan::cli
