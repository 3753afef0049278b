#include "common/pipeline/csv.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/pipeline/simulator.h"

namespace titan::pipeline {
namespace {

constexpr char kPairEnding[] = "OVERLAP_F_B";

absl::Status bad_cell(const std::string& cell, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", cell, "\" ", why));
}

// "F", "I", ...; nothing for cells that mean nothing here.
absl::StatusOr<std::optional<Work>> work_of(const std::string& word, const std::string& cell) {
  if (word == "F") return Work::kForward;
  if (word == "B") return Work::kBackward;
  if (word == "I") return Work::kInputGradient;
  if (word == "W") return Work::kWeightGradient;
  if (word == "REDUCE_GRAD") return Work::kReduce;
  for (const char* ignored : {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD"}) {
    if (word == ignored) return std::nullopt;
  }
  return bad_cell(cell, "is not a stage, F, B, I or W, and a microbatch, such as 0F3 or 2W0");
}

// A number at `from`; moves `from` behind it.
std::optional<int> number_at(const std::string& text, std::size_t& from) {
  std::size_t end = from;
  while (end < text.size() && absl::ascii_isdigit(text[end])) ++end;
  int value = 0;
  if (end == from || !absl::SimpleAtoi(text.substr(from, end - from), &value)) return std::nullopt;
  from = end;
  return value;
}

absl::StatusOr<std::optional<Action>> parse_action(const std::string& cell) {
  constexpr char kForm[] = "is not a stage, F, B, I or W, and a microbatch, such as 0F3 or 2W0";
  std::size_t at = 0;
  const std::optional<int> stage = number_at(cell, at);
  if (!stage.has_value()) return bad_cell(cell, kForm);
  std::size_t end = at;
  while (end < cell.size() && !absl::ascii_isdigit(cell[end])) ++end;
  const absl::StatusOr<std::optional<Work>> work = work_of(cell.substr(at, end - at), cell);
  if (!work.ok()) return work.status();
  const std::optional<int> microbatch = number_at(cell, end);
  if (end != cell.size()) return bad_cell(cell, kForm);
  if (!work->has_value()) return std::optional<Action>();
  if (*work == Work::kReduce) return std::optional<Action>(Action{*stage, Work::kReduce, -1});
  if (!microbatch.has_value()) return bad_cell(cell, "names no microbatch: write one behind the letter, such as 0F3");
  return std::optional<Action>(Action{*stage, **work, *microbatch});
}

// A step without actions: nothing to do.
absl::StatusOr<Step> parse_cell(const std::string& cell) {
  if (cell.empty()) return Step{};
  std::vector<std::string> parts = {cell};
  if (cell.front() == '(') {
    const std::size_t close = cell.find(')');
    if (close == cell.npos || cell.substr(close + 1) != kPairEnding)
      return bad_cell(cell, "is not a pair, such as (0F7;7B2)OVERLAP_F_B");
    parts = absl::StrSplit(cell.substr(1, close - 1), ';', absl::SkipWhitespace());
  }
  Step step;
  for (const std::string& part : parts) {
    const absl::StatusOr<std::optional<Action>> action = parse_action(std::string(absl::StripAsciiWhitespace(part)));
    if (!action.ok()) return action.status();
    if (action->has_value()) step.actions.push_back(**action);
  }
  return step;
}

absl::StatusOr<std::vector<Step>> parse_row(const std::string& line, int row) {
  std::vector<Step> steps;
  int column = 0;
  for (absl::string_view raw : absl::StrSplit(line, ',')) {
    ++column;
    raw = absl::StripAsciiWhitespace(raw);
    if (raw.size() >= 2 && raw.front() == '"' && raw.back() == '"') raw = raw.substr(1, raw.size() - 2);
    absl::StatusOr<Step> step = parse_cell(std::string(absl::StripAsciiWhitespace(raw)));
    if (!step.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row, ", column ", column, ": ", std::string(step.status().message())));
    }
    if (!step->actions.empty()) steps.push_back(*std::move(step));
  }
  const bool reduces =
      std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.actions[0].work == Work::kReduce; });
  return reduces ? steps : with_reductions(std::move(steps));
}

// Counts, and the placement under which every rank owns the stages of its row.
absl::Status fill_shape(Schedule& schedule) {
  bool backward = false;
  schedule.ranks = static_cast<int>(schedule.steps.size());
  schedule.stages = schedule.microbatches = 0;
  for (const std::vector<Step>& steps : schedule.steps) {
    for (const Step& step : steps) {
      for (const Action& action : step.actions) {
        schedule.stages = std::max(schedule.stages, action.stage + 1);
        schedule.microbatches = std::max(schedule.microbatches, action.microbatch + 1);
        backward = backward || action.work != Work::kForward;
      }
    }
  }
  if (!backward) return absl::InvalidArgumentError("has forward passes only: a training step needs B, or I and W");
  const auto fits = [&](Placement placement) {
    schedule.placement = placement;
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      for (const Step& step : schedule.steps[rank]) {
        for (const Action& action : step.actions) {
          if (schedule.rank_of(action.stage) != rank) return false;
        }
      }
    }
    return true;
  };
  // When neither fits, check() names what does not.
  schedule.placement = !fits(Placement::kLoop) && fits(Placement::kV) ? Placement::kV : Placement::kLoop;
  return absl::OkStatus();
}

std::string cell_of(const Step& step) {
  if (step.actions.size() == 1) return to_string(step.actions[0]);
  std::vector<std::string> parts;
  for (const Action& action : step.actions) parts.push_back(to_string(action));
  return absl::StrCat("(", absl::StrJoin(parts, ";"), ")", kPairEnding);
}

}  // namespace

absl::StatusOr<Schedule> parse_csv(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  while (!lines.empty() && absl::StripAsciiWhitespace(lines.back()).empty()) lines.pop_back();
  if (lines.empty()) return absl::InvalidArgumentError("is empty: it needs a row of cells for each pipeline rank");
  Schedule schedule{.name = "CSV", .steps = {}};
  for (std::size_t row = 0; row < lines.size(); ++row) {
    absl::StatusOr<std::vector<Step>> steps = parse_row(lines[row], static_cast<int>(row) + 1);
    if (!steps.ok()) return steps.status();
    if (steps->empty())
      return absl::InvalidArgumentError(absl::StrCat("row ", row + 1, " is empty: rank ", row, " has no work"));
    schedule.steps.push_back(*std::move(steps));
  }
  if (absl::Status bad = fill_shape(schedule); !bad.ok()) return bad;
  if (absl::Status bad = check(schedule); !bad.ok()) return bad;
  return schedule;
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Step>& steps : schedule.steps) {
    std::vector<std::string> cells;
    for (const Step& step : steps) {
      if (step.actions[0].work != Work::kReduce) cells.push_back(cell_of(step));
    }
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

}  // namespace titan::pipeline
