#include "controller/cli/bench/figures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

using nlohmann::json;

constexpr double kGibibyte = 1LL << 30;
constexpr const char* kPhases[] = {"data", "forward", "backward", "optimizer"};

// Whole lines that are objects.
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

// The steps after the warm-up, each with the line that counts: its last one.
absl::StatusOr<std::map<int, json>> steps_of(const std::string& metrics) {
  std::map<int, json> steps;
  for (json& line : objects(metrics)) {
    const auto step = number(line, "step");
    if (step && line.contains("time_metrics/end_to_end(s)")) steps[static_cast<int>(*step)] = std::move(line);
  }
  if (steps.empty()) return absl::DataLossError("no step was logged in metrics.jsonl");
  return steps;
}

// When the line was written.
absl::StatusOr<absl::Time> time_of(const json& line) {
  absl::Time time;
  if (line.contains("time") && line["time"].is_string() &&
      absl::ParseTime(absl::RFC3339_full, line["time"].get<std::string>(), &time, nullptr)) {
    return time;
  }
  return absl::DataLossError(absl::StrCat("step ", line.value("step", 0), " has no time in metrics.jsonl"));
}

// The phases' means over `lines`.
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

// Tokens of a step are the same in each; n_tokens_seen counts those of all ranks.
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
  const auto after = steps.find(record.saved_step + 1);  // A save comes after its step's line.
  if (after != steps.end()) {
    const auto stall = number(after->second, "time_metrics/checkpoint(s)");
    if (stall) figures["save_stall_seconds"] = *stall;
  }
  const auto saved = steps.find(record.saved_step);
  if (saved == steps.end() || record.published == absl::InfinitePast()) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const absl::Time line, time_of(saved->second));
  const double seconds = std::max(absl::ToDoubleSeconds(record.published - line), 1e-3);  // Its line's resolution.
  figures["save_seconds"] = seconds;
  figures["save_bytes"] = record.saved_bytes;
  figures["save_bytes_per_second"] = record.saved_bytes / seconds;
  return absl::OkStatus();
}

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
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
      {"save_stall_seconds", "save: training stands, ms", 1e3, 1},
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
  double work = 0;  // What the steps did, in a share of a device's peak times seconds: of equal steps as many.
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

}  // namespace titan::cli
