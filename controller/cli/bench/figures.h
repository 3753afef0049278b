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

// Results of one run, by name (figure_kinds()), in seconds, bytes or tokens per second; unknown ones are absent.
using Figures = std::map<std::string, double, std::less<>>;

// A figure for people: `value * scale` with `digits` after the point.
struct FigureKind {
  const char* name;
  const char* label;
  double scale;
  int digits;
  bool of_step = false;  // A part of the step's time: shown with its share.
};
// Returns all kinds, in the order of the table.
const std::vector<FigureKind>& figure_kinds();

// Data of one run's job, mostly from its dump folder.
struct RunRecord {
  std::string metrics;                          // Content of metrics.jsonl; each step logged.
  absl::Time launched;                          // Just before the daemons were started.
  int ranks = 1;                                // Ranks of the job.
  int warmup = 0;                               // Steps that are not measured.
  bool on_cpu = true;                           // Otherwise the memory figures are a device's.
  int saved_step = 0;                           // Step with the measured checkpoint; 0: none.
  double saved_bytes = 0;                       // Size of its files,
  absl::Time published = absl::InfinitePast();  // and when its manifest was written.
};

// Computes the figures of a run. `step_seconds` is the median of the measured steps, `tokens_per_second` a rank's
// tokens of a step in that time; phases are means over these steps. The step after a save is not measured. Errors:
// DataLoss when a measured step was not logged or the lines have another form.
absl::StatusOr<Figures> figures_of(const RunRecord& record);

struct Spread {
  double median = 0, least = 0, greatest = 0;
};
double median(std::vector<double> values);         // Expects at least one value.
Spread spread(const std::vector<double>& values);  // Expects at least one value.

// The runs of one configuration, in order of rounds.
struct Measured {
  std::string name;
  std::vector<std::string> overrides;
  std::vector<Figures> runs;
};

// Returns the spread over the runs that have the figure; nothing when none does.
std::optional<Spread> spread_of(const Measured& measured, std::string_view name);

// Returns the ratio of `measured` to `first`, round by round, so that what affects a whole round cancels; nothing when
// a run lacks the figure or the first one's is zero.
std::optional<Spread> ratio_of(const Measured& measured, const Measured& first, std::string_view name);

// Returns rows of cells, the header first: a row for each figure that some run has, a column for each configuration
// and, except for the first, its ratio to the first. "1,234 (1,200 to 1,260)": the median and, of several runs, minimum
// and maximum.
std::vector<std::vector<std::string>> table_rows(const std::vector<Measured>& all);

// Returns {"configurations": [{"name", "overrides", "runs": [{figure: value}], "figures": {figure: {"median", "least",
// "greatest"}}, "ratios": the same, to the first; not in the first}]}
nlohmann::ordered_json report_json(const std::vector<Measured>& all);

// Formats a number with commas: "12,345.7".
std::string grouped(double value, int digits);

}  // namespace titan::cli
