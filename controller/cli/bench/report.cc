#include "controller/cli/bench/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace titan::cli {
namespace {

using nlohmann::ordered_json;

std::string with_spread(const Spread& found, size_t runs, double scale, int digits) {
  std::string middle = grouped(found.median * scale, digits);
  if (runs < 2) return middle;
  return absl::StrCat(middle, " (", grouped(found.least * scale, digits), " to ",
                      grouped(found.greatest * scale, digits), ")");
}

std::string cell(const Measured& measured, const Kind& kind) {
  const auto found = spread_of(measured, kind.name);
  if (!found) return "-";
  std::string text = with_spread(*found, measured.runs.size(), kind.scale, kind.digits);
  const auto step = spread_of(measured, "step_seconds");
  if (kind.of_step && step && step->median > 0) {
    absl::StrAppend(&text, absl::StrFormat(" %.0f%%", 100 * found->median / step->median));
  }
  return text;
}

std::string ratio_cell(const Measured& measured, const Measured& first, const Kind& kind) {
  const auto found = ratio_of(measured, first, kind.name);
  return found ? with_spread(*found, measured.runs.size(), 1, 2) : "-";
}

bool known(const std::vector<Measured>& all, const Kind& kind) {
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
  for (const Kind& kind : kinds()) {
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
    for (const Kind& kind : kinds()) {
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
