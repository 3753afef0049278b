#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text/counted.h"
#include "common/plan/pipeline/draw.h"
#include "common/plan/pipeline/memory.h"

namespace titan::pipeline {
namespace {

constexpr std::size_t kMargin = 9;  // "rank 12  "

// The length of one text column: the shortest work that takes time.
double column(const Simulation& simulation) {
  double shortest = simulation.makespan;
  for (const RankTimeline& rank : simulation.ranks) {
    for (const TimedAction& timed : rank.actions) {
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
    }
  }
  return shortest > 0 ? shortest : 1;
}

std::string label(const Action& action) { return action.work == Work::kReduce ? "" : to_string(action); }

std::size_t label_width(const Simulation& simulation) {
  std::size_t width = 0;
  for (const RankTimeline& rank : simulation.ranks) {
    for (const TimedAction& timed : rank.actions) width = std::max(width, label(timed.action).size() + 1);
  }
  return width;
}

std::string labelled_row(const RankTimeline& rank, double unit, std::size_t width) {
  std::string row;
  for (const TimedAction& timed : rank.actions) {
    const auto from = static_cast<std::size_t>(std::lround(timed.start / unit)) * width;
    const auto to = static_cast<std::size_t>(std::lround(timed.end / unit)) * width;
    if (to == from) continue;  // A free reduction.
    if (row.size() < from) row.append(from - row.size(), ' ');
    row.resize(from);  // Halves of a pair that overlap: the later one is seen from where it begins.
    const std::string name = label(timed.action);
    row += name + std::string(to - from - 1 - std::min(name.size(), to - from - 1), '-') + " ";
  }
  row.resize(row.find_last_not_of(' ') + 1);
  return row;
}

// Of each column the work that takes most of it.
std::string letter_row(const RankTimeline& rank, int ranks, double unit, std::size_t columns) {
  std::string row(columns, '.');
  std::vector<double> most(columns);
  for (const TimedAction& timed : rank.actions) {
    const char big = letter(timed.action.work);
    const char mark = timed.action.stage / ranks % 2 == 0 ? big : absl::ascii_tolower(big);
    const auto last = std::min(columns, static_cast<std::size_t>(std::ceil(timed.end / unit)));
    for (auto i = static_cast<std::size_t>(timed.start / unit); i < last; ++i) {
      const double left = static_cast<double>(i) * unit;
      const double share = std::min(timed.end, left + unit) - std::max(timed.start, left);
      // Waiting is seen where it takes more than half of a column.
      if (share <= most[i] || share < unit / 2 - 1e-9) continue;
      most[i] = share;
      row[i] = mark;
    }
  }
  return row;
}

std::string drawing(const Schedule& schedule, const Simulation& simulation, std::size_t width) {
  const double unit = column(simulation);
  const std::size_t labels = label_width(simulation);
  const auto units = static_cast<std::size_t>(std::ceil(simulation.makespan / unit - 1e-9));
  const bool letters = width > 0 && kMargin + units * labels > width;
  const std::size_t columns = letters ? std::min(units, std::max<std::size_t>(width, kMargin + 20) - kMargin) : units;
  const double letter_unit = simulation.makespan / static_cast<double>(std::max<std::size_t>(columns, 1));
  std::string out;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const RankTimeline& timeline = simulation.ranks[rank];
    absl::StrAppendFormat(
        &out, "rank %-3d %s\n", rank,
        letters ? letter_row(timeline, schedule.ranks, letter_unit, columns) : labelled_row(timeline, unit, labels));
  }
  if (letters) {
    absl::StrAppendFormat(&out,
                          "a column is %.3g of time: F forward, B backward, I input gradient, W weight gradient, . "
                          "waits%s\n",
                          letter_unit,
                          schedule.stages > schedule.ranks ? "; small letters: the rank's next stage" : "");
  }
  return out;
}

std::string counts(const RankTimeline& rank) {
  std::vector<std::string> parts;
  for (const auto& [stage, peak] : rank.peak_by_stage) parts.push_back(absl::StrCat("stage ", stage, ": ", peak));
  return parts.size() < 2 ? absl::StrCat(rank.peak_activations)
                          : absl::StrCat(rank.peak_activations, " (", absl::StrJoin(parts, ", "), ")");
}

}  // namespace

std::string draw_text(const Schedule& schedule, const Simulation& simulation, const DrawOptions& options) {
  const bool bytes = !options.stage_bytes.empty();
  std::string out = title_of(schedule, simulation) + "\n\n" + drawing(schedule, simulation, options.width);
  absl::StrAppendFormat(&out, "\n%-5s %-14s %-9s %s%s\n", "rank", "stages", "bubble", bytes ? "memory      " : "",
                        "most activations held");
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const RankTimeline& timeline = simulation.ranks[rank];
    const Held most = most_held(held_over_time(timeline, options.stage_bytes));
    absl::StrAppendFormat(&out, "%-5d %-14s %-9s %s%s\n", rank, absl::StrJoin(schedule.stages_of(rank), " "),
                          percent_text(timeline.bubble), bytes ? absl::StrFormat("%-12s", bytes_text(most.bytes)) : "",
                          counts(timeline));
  }
  return out;
}

std::string title_of(const Schedule& schedule, const Simulation& simulation) {
  return absl::StrCat(schedule.name, ": ", counted(schedule.ranks, "rank"), ", ", counted(schedule.stages, "stage"),
                      ", ", counted(schedule.microbatches, "microbatch", "microbatches"), "; a step takes ",
                      simulation.makespan, ", bubble ", percent_text(simulation.bubble));
}

std::string percent_text(double share) { return absl::StrFormat("%.1f %%", 100 * share + 0.0); }

std::string bytes_text(std::int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (bytes >= std::int64_t{1} << 30) return absl::StrFormat("%.2f GiB", size / (1 << 30));
  if (bytes >= std::int64_t{1} << 20) return absl::StrFormat("%.2f MiB", size / (1 << 20));
  return absl::StrFormat("%.1f KiB", size / (1 << 10));
}

}  // namespace titan::pipeline
