#include "controller/cli/bench/figures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

using nlohmann::json;

constexpr double kGibibyte = 1LL << 30;
constexpr const char* kPhases[] = {"data", "forward", "backward", "optimizer"};

// Returns the lines that are JSON objects.
std::vector<json> objects(const std::string& text) {
  std::vector<json> out;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    json object = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (object.is_object()) out.push_back(std::move(object));
  }
  return out;
}

std::optional<double> number(const json& line, const std::string& name) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

absl::StatusOr<double> needed(const json& line, const std::string& name) {
  if (const auto value = number(line, name)) return *value;
  return absl::DataLossError(absl::StrCat("step ", line.value("step", 0), " has no ", name, " in metrics.jsonl"));
}

// Returns all logged steps, each with its last line.
absl::StatusOr<std::map<int, json>> steps_of(const std::string& metrics) {
  std::map<int, json> steps;
  for (json& line : objects(metrics)) {
    const auto step = number(line, "step");
    if (step && line.contains("time_metrics/end_to_end(s)")) steps[static_cast<int>(*step)] = std::move(line);
  }
  if (steps.empty()) return absl::DataLossError("no step was logged in metrics.jsonl");
  return steps;
}

// Returns the time at which the line was written.
absl::StatusOr<absl::Time> time_of(const json& line) {
  absl::Time time;
  if (line.contains("time") && line["time"].is_string() &&
      absl::ParseTime(absl::RFC3339_full, line["time"].get<std::string>(), &time, nullptr)) {
    return time;
  }
  return absl::DataLossError(absl::StrCat("step ", line.value("step", 0), " has no time in metrics.jsonl"));
}

// Adds the means of the phases over `lines`.
void add_phases(const std::vector<const json*>& lines, Figures& figures) {
  for (const char* phase : kPhases) {
    double sum = 0;
    bool known = true;
    for (const json* line : lines) {
      const auto value = number(*line, absl::StrCat("time_metrics/", phase, "(s)"));
      known &= value.has_value();
      sum += value.value_or(0);
    }
    if (known) figures[absl::StrCat(phase, "_seconds")] = sum / static_cast<double>(lines.size());
  }
}

// Returns the tokens of one rank in a step. Every step has as many; n_tokens_seen counts those of all ranks.
absl::StatusOr<double> tokens_of_step(const std::map<int, json>& steps, int ranks) {
  const auto& [step, line] = *steps.rbegin();
  TITAN_ASSIGN_OR_RETURN(const double seen, needed(line, "n_tokens_seen"));
  return seen / step / ranks;
}

void add_highest(const std::vector<const json*>& lines, const char* from, double scale, const char* name,
                 Figures& figures) {
  for (const json* line : lines) {
    const auto value = number(*line, from);
    if (value) figures[name] = std::max(figures[name], *value * scale);
  }
}

absl::Status add_save(const RunRecord& record, const std::map<int, json>& steps, Figures& figures) {
  const auto after = steps.find(record.saved_step + 1);  // A save runs after its step's line.
  if (after != steps.end()) {
    const auto stall = number(after->second, "time_metrics/checkpoint(s)");
    if (stall) figures["save_stall_seconds"] = *stall;
  }
  const auto saved = steps.find(record.saved_step);
  if (saved == steps.end() || record.published == absl::InfinitePast()) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const absl::Time line, time_of(saved->second));
  // At least the resolution of a line's time.
  const double seconds = std::max(absl::ToDoubleSeconds(record.published - line), 1e-3);
  figures["save_seconds"] = seconds;
  figures["save_bytes"] = record.saved_bytes;
  figures["save_bytes_per_second"] = record.saved_bytes / seconds;
  return absl::OkStatus();
}

}  // namespace

const std::vector<FigureKind>& figure_kinds() {
  static const std::vector<FigureKind> all = {
      {"tokens_per_second", "tokens/s a rank", 1, 0},
      {"step_seconds", "step, ms", 1e3, 1},
      {"data_seconds", "  data, ms", 1e3, 1, true},
      {"forward_seconds", "  forward, ms", 1e3, 1, true},
      {"backward_seconds", "  backward, ms", 1e3, 1, true},
      {"optimizer_seconds", "  optimizer, ms", 1e3, 1, true},
      {"first_step_seconds", "launch to first step, s", 1, 2},
      {"memory_bytes", "peak memory of all processes, MiB", 1.0 / (1 << 20), 0},
      {"device_memory_bytes", "peak memory of rank 0's device, MiB", 1.0 / (1 << 20), 0},
      {"mfu_percent", "MFU, %", 1, 2},
      {"save_stall_seconds", "save: training stalls, ms", 1e3, 1},
      {"save_seconds", "save: until committed, ms", 1e3, 1},
      {"save_bytes", "save: size, MiB", 1.0 / (1 << 20), 1},
      {"save_bytes_per_second", "save: MiB/s", 1.0 / (1 << 20), 1},
  };
  return all;
}

absl::StatusOr<Figures> figures_of(const RunRecord& record) {
  TITAN_ASSIGN_OR_RETURN(const auto steps, steps_of(record.metrics));
  std::vector<const json*> counted, all;
  std::vector<double> seconds;
  // Sum of each step's MFU times its seconds, which measures work: equal steps do equal work.
  double work = 0;
  int with_mfu = 0;
  for (const auto& [step, line] : steps) {
    all.push_back(&line);
    if (step <= record.warmup || (record.saved_step > 0 && step == record.saved_step + 1)) continue;
    TITAN_ASSIGN_OR_RETURN(const double one, needed(line, "time_metrics/end_to_end(s)"));
    seconds.push_back(one);
    counted.push_back(&line);
    if (const auto mfu = number(line, "mfu(%)")) {
      work += *mfu * one;
      ++with_mfu;
    }
  }
  if (counted.empty()) return absl::DataLossError("no step after the warm-up was logged in metrics.jsonl");
  Figures figures;
  TITAN_ASSIGN_OR_RETURN(const double tokens, tokens_of_step(steps, record.ranks));
  figures["step_seconds"] = median(seconds);
  figures["tokens_per_second"] = tokens / figures["step_seconds"];
  TITAN_ASSIGN_OR_RETURN(const absl::Time first, time_of(*all.front()));
  figures["first_step_seconds"] = absl::ToDoubleSeconds(first - record.launched);
  if (with_mfu > 0) figures["mfu_percent"] = work / with_mfu / figures["step_seconds"];
  add_phases(counted, figures);
  if (!record.on_cpu) add_highest(all, "memory/max_reserved(GiB)", kGibibyte, "device_memory_bytes", figures);
  if (record.saved_step > 0) TITAN_RETURN_IF_ERROR(add_save(record, steps, figures));
  return figures;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Spread spread(const std::vector<double>& values) {
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  return {.median = median(values), .least = *least, .greatest = *greatest};
}

std::optional<Spread> spread_of(const Measured& measured, std::string_view name) {
  std::vector<double> values;
  for (const Figures& run : measured.runs) {
    if (const auto found = run.find(name); found != run.end()) values.push_back(found->second);
  }
  if (values.empty()) return std::nullopt;
  return spread(values);
}

std::optional<Spread> ratio_of(const Measured& measured, const Measured& first, std::string_view name) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(measured.runs.size(), first.runs.size()); ++i) {
    const auto ours = measured.runs[i].find(name), base = first.runs[i].find(name);
    if (ours == measured.runs[i].end() || base == first.runs[i].end() || base->second == 0) return std::nullopt;
    ratios.push_back(ours->second / base->second);
  }
  if (ratios.empty()) return std::nullopt;
  return spread(ratios);
}

namespace {

using nlohmann::ordered_json;

std::string with_spread(const Spread& found, size_t runs, double scale, int digits) {
  std::string middle = grouped(found.median * scale, digits);
  if (runs < 2) return middle;
  return absl::StrCat(middle, " (", grouped(found.least * scale, digits), " to ",
                      grouped(found.greatest * scale, digits), ")");
}

std::string cell(const Measured& measured, const FigureKind& kind) {
  const auto found = spread_of(measured, kind.name);
  if (!found) return "-";
  std::string text = with_spread(*found, measured.runs.size(), kind.scale, kind.digits);
  const auto step = spread_of(measured, "step_seconds");
  if (kind.of_step && step && step->median > 0) {
    absl::StrAppend(&text, absl::StrFormat(" %.0f%%", 100 * found->median / step->median));
  }
  return text;
}

std::string ratio_cell(const Measured& measured, const Measured& first, const FigureKind& kind) {
  const auto found = ratio_of(measured, first, kind.name);
  return found ? with_spread(*found, measured.runs.size(), 1, 2) : "-";
}

bool known(const std::vector<Measured>& all, const FigureKind& kind) {
  for (const Measured& measured : all) {
    if (spread_of(measured, kind.name)) return true;
  }
  return false;
}

ordered_json to_json(const Spread& found) {
  return {{"median", found.median}, {"least", found.least}, {"greatest", found.greatest}};
}

}  // namespace

std::string grouped(double value, int digits) {
  std::string text = absl::StrFormat("%.*f", digits, value);
  size_t end = text.find('.');
  if (end == std::string::npos) end = text.size();
  const size_t first = text[0] == '-' ? 1 : 0;
  while (end > first + 3) {
    end -= 3;
    text.insert(end, 1, ',');
  }
  return text;
}

std::vector<std::vector<std::string>> table_rows(const std::vector<Measured>& all) {
  std::vector<std::vector<std::string>> rows(1, {""});
  for (size_t i = 0; i < all.size(); ++i) {
    rows[0].push_back(all[i].name);
    if (i > 0) rows[0].push_back(absl::StrCat("/ ", all[0].name));
  }
  for (const FigureKind& kind : figure_kinds()) {
    if (!known(all, kind)) continue;
    std::vector<std::string> row = {kind.label};
    for (size_t i = 0; i < all.size(); ++i) {
      row.push_back(cell(all[i], kind));
      if (i > 0) row.push_back(ratio_cell(all[i], all[0], kind));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

ordered_json report_json(const std::vector<Measured>& all) {
  ordered_json configurations = ordered_json::array();
  for (const Measured& measured : all) {
    ordered_json figures = ordered_json::object(), ratios = ordered_json::object(), runs = ordered_json::array();
    for (const FigureKind& kind : figure_kinds()) {
      if (const auto found = spread_of(measured, kind.name)) figures[kind.name] = to_json(*found);
      if (const auto ratio = ratio_of(measured, all[0], kind.name)) ratios[kind.name] = to_json(*ratio);
    }
    for (const Figures& run : measured.runs) {
      ordered_json one = ordered_json::object();
      for (const auto& [name, value] : run) one[name] = value;
      runs.push_back(std::move(one));
    }
    ordered_json entry = {
        {"name", measured.name}, {"overrides", measured.overrides}, {"figures", figures}, {"runs", runs}};
    if (&measured != &all[0]) entry["ratios"] = ratios;
    configurations.push_back(std::move(entry));
  }
  return {{"configurations", std::move(configurations)}};
}

}  // namespace titan::cli
