#include "common/plan/pipeline/csv.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text/quantities.h"
#include "common/plan/pipeline/simulator.h"

namespace titan::pipeline {
namespace {

constexpr char kPairEnding[] = "OVERLAP_F_B";
constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";  // Spreadsheets put one before UTF-8.

// Makes a cell printable: a file that is not a schedule can contain anything.
std::string quoted(const std::string& cell) {
  constexpr std::size_t kMost = 40;
  std::string text = cell.substr(0, kMost);
  for (char& c : text) c = absl::ascii_isprint(c) ? c : '?';
  return absl::StrCat("\"", text, cell.size() > kMost ? "..." : "", "\"");
}

absl::Status bad_cell(const std::string& cell, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(quoted(cell), " ", why));
}

// Parses "F", "I", ...; returns nothing for the cells that are ignored.
absl::StatusOr<std::optional<ComputationType>> work_of(const std::string& word, const std::string& cell) {
  if (word == "F") return ComputationType::kForward;
  if (word == "B") return ComputationType::kBackward;
  if (word == "I") return ComputationType::kInputGradient;
  if (word == "W") return ComputationType::kWeightGradient;
  if (word == "REDUCE_GRAD") return ComputationType::kReduce;
  for (const char* ignored : {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD"}) {
    if (word == ignored) return std::nullopt;
  }
  return bad_cell(cell, "is not a stage, F, B, I or W, and a microbatch, such as 0F3 or 2W0");
}

// Parses a number at `from` and moves `from` past it.
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
  const absl::StatusOr<std::optional<ComputationType>> work = work_of(cell.substr(at, end - at), cell);
  if (!work.ok()) return work.status();
  const std::optional<int> microbatch = number_at(cell, end);
  if (end != cell.size()) return bad_cell(cell, kForm);
  if (!work->has_value()) return std::optional<Action>();
  if (*work == ComputationType::kReduce) return std::optional<Action>(Action{*stage, ComputationType::kReduce, -1});
  if (!microbatch.has_value()) return bad_cell(cell, "has no microbatch: write one after the letter, such as 0F3");
  return std::optional<Action>(Action{*stage, **work, *microbatch});
}

// Returns a step without actions for an empty or ignored cell.
absl::StatusOr<ScheduleStep> parse_cell(const std::string& cell) {
  if (cell.empty()) return ScheduleStep{};
  std::vector<std::string> parts = {cell};
  if (cell.front() == '(') {
    const std::size_t close = cell.find(')');
    if (close == cell.npos || cell.substr(close + 1) != kPairEnding)
      return bad_cell(cell, "is not a pair, such as (0F7;7B2)OVERLAP_F_B");
    parts = absl::StrSplit(cell.substr(1, close - 1), ';', absl::SkipWhitespace());
  }
  ScheduleStep step;
  for (const std::string& part : parts) {
    const absl::StatusOr<std::optional<Action>> action = parse_action(std::string(absl::StripAsciiWhitespace(part)));
    if (!action.ok()) return action.status();
    if (action->has_value()) step.actions.push_back(**action);
  }
  return step;
}

// One rank's steps, and the column of each step.
struct Row {
  std::vector<ScheduleStep> steps;
  std::vector<int> columns;
};

// Adds reductions, with the column of the work that they follow.
Row with_reductions(Row row) {
  Row result{.steps = pipeline::with_reductions(row.steps), .columns = {}};
  std::size_t next = 0;
  for (const ScheduleStep& step : result.steps) {
    if (step.actions[0].work != ComputationType::kReduce) ++next;
    result.columns.push_back(row.columns[next - 1]);
  }
  return result;
}

absl::StatusOr<Row> parse_row(const std::string& line, int number) {
  Row row;
  int column = 0;
  for (absl::string_view raw : absl::StrSplit(line, ',')) {
    ++column;
    raw = absl::StripAsciiWhitespace(raw);
    if (raw.size() >= 2 && raw.front() == '"' && raw.back() == '"') raw = raw.substr(1, raw.size() - 2);
    absl::StatusOr<ScheduleStep> step = parse_cell(std::string(absl::StripAsciiWhitespace(raw)));
    if (!step.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", number, ", column ", column, ": ", std::string(step.status().message())));
    }
    if (step->actions.empty()) continue;
    row.steps.push_back(*std::move(step));
    row.columns.push_back(column);
  }
  const bool reduces = std::any_of(row.steps.begin(), row.steps.end(), [](const ScheduleStep& step) {
    return step.actions[0].work == ComputationType::kReduce;
  });
  return reduces ? row : with_reductions(std::move(row));
}

// Rejects a stage or microbatch number that is not below the number of forward passes: the schedule would be absurdly
// large.
absl::Status check_number(const char* what, int number, const Action& action, std::size_t forwards, const Where& where,
                          int rank, std::size_t step) {
  if (number < 0 || static_cast<std::size_t>(number) < forwards) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where(rank, step), ": ", to_string(action), " names ", what, " ",
                                                 number, ", but the file has ",
                                                 counted(forwards, "forward pass", "forward passes"), " in all"));
}

// Fills in the counts and the placement under which every rank owns the stages of its row.
absl::Status fill_shape(Schedule& schedule, const Where& where) {
  std::size_t forwards = 0;
  bool backward = false;
  const auto each = [&schedule](const auto& visit) {
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      for (std::size_t step = 0; step < schedule.steps[rank].size(); ++step) {
        for (const Action& action : schedule.steps[rank][step].actions) visit(rank, step, action);
      }
    }
  };
  schedule.ranks = static_cast<int>(schedule.steps.size());
  schedule.stages = schedule.microbatches = 0;
  each([&](int, std::size_t, const Action& action) {
    forwards += action.work == ComputationType::kForward ? 1 : 0;
    backward = backward || action.work != ComputationType::kForward;
  });
  absl::Status bad;
  each([&](int rank, std::size_t step, const Action& action) {
    if (!bad.ok()) return;
    bad.Update(check_number("stage", action.stage, action, forwards, where, rank, step));
    bad.Update(check_number("microbatch", action.microbatch, action, forwards, where, rank, step));
    if (!bad.ok()) return;
    schedule.stages = std::max(schedule.stages, action.stage + 1);
    schedule.microbatches = std::max(schedule.microbatches, action.microbatch + 1);
  });
  if (!bad.ok()) return bad;
  if (!backward) return absl::InvalidArgumentError("has forward passes only: a training step needs B, or I and W");
  const auto fits = [&](StagePlacement placement) {
    bool all = true;
    schedule.placement = placement;
    each([&](int rank, std::size_t, const Action& action) { all = all && schedule.rank_of(action.stage) == rank; });
    return all;
  };
  // If neither fits, check() names the mismatch.
  schedule.placement =
      !fits(StagePlacement::kLoop) && fits(StagePlacement::kV) ? StagePlacement::kV : StagePlacement::kLoop;
  return absl::OkStatus();
}

std::string cell_of(const ScheduleStep& step) {
  if (step.actions.size() == 1) return to_string(step.actions[0]);
  std::vector<std::string> parts;
  for (const Action& action : step.actions) parts.push_back(to_string(action));
  return absl::StrCat("(", absl::StrJoin(parts, ";"), ")", kPairEnding);
}

}  // namespace

absl::StatusOr<Schedule> parse_csv(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(absl::StripPrefix(text, kByteOrderMark), '\n');
  while (!lines.empty() && absl::StripAsciiWhitespace(lines.back()).empty()) lines.pop_back();
  if (lines.empty()) return absl::InvalidArgumentError("is empty: it needs a row of cells for each pipeline rank");
  Schedule schedule{.name = "CSV", .steps = {}};
  std::vector<std::vector<int>> columns;
  for (std::size_t row = 0; row < lines.size(); ++row) {
    absl::StatusOr<Row> parsed = parse_row(lines[row], static_cast<int>(row) + 1);
    if (!parsed.ok()) return parsed.status();
    if (parsed->steps.empty())
      return absl::InvalidArgumentError(absl::StrCat("row ", row + 1, " is empty: rank ", row, " has no work"));
    schedule.steps.push_back(std::move(parsed->steps));
    columns.push_back(std::move(parsed->columns));
  }
  const Where where = [&](int rank, std::optional<std::size_t> step) {
    return step ? absl::StrCat("row ", rank + 1, ", column ", columns[rank][*step]) : absl::StrCat("row ", rank + 1);
  };
  if (absl::Status bad = fill_shape(schedule, where); !bad.ok()) return bad;
  if (absl::StatusOr<Simulation> run = simulate(schedule, {}, where); !run.ok()) return run.status();
  return schedule;
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<ScheduleStep>& steps : schedule.steps) {
    std::vector<std::string> cells;
    for (const ScheduleStep& step : steps) {
      if (step.actions[0].work != ComputationType::kReduce) cells.push_back(cell_of(step));
    }
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

}  // namespace titan::pipeline
