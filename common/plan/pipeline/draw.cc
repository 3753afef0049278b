#include "common/plan/pipeline/draw.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"
#include "common/plan/pipeline/simulator.h"

namespace titan::pipeline {
namespace {

constexpr std::size_t kMargin = 9;  // "rank 12  "

// Returns the duration of one text column: the shortest work that takes time.
double column(const Simulation& simulation) {
  double shortest = simulation.makespan;
  for (const RankTimeline& rank : simulation.ranks) {
    for (const TimedAction& timed : rank.actions) {
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
    }
  }
  return shortest > 0 ? shortest : 1;
}

std::string label(const Action& action) { return action.work == ComputationType::kReduce ? "" : to_string(action); }

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
    if (to == from) continue;  // A reduction that takes no time.
    if (row.size() < from) row.append(from - row.size(), ' ');
    row.resize(from);  // If the halves of a pair overlap, the later one overwrites the earlier from its start.
    const std::string name = label(timed.action);
    row += name + std::string(to - from - 1 - std::min(name.size(), to - from - 1), '-') + " ";
  }
  row.resize(row.find_last_not_of(' ') + 1);
  return row;
}

// Returns a letter for each column: the work that takes most of it.
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
      // A column shows waiting if no work takes half of it.
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
    const HeldActivations most = peak_held(held_over_time(timeline, options.stage_bytes));
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

namespace {

constexpr int kLeft = 60, kTop = 56, kBar = 24, kMemory = 16, kRow = kBar + kMemory + 8, kRight = 260;
constexpr int kLeast = 1000;  // Minimum width for title and legend.
constexpr double kLetter = 7;

std::string colour(ComputationType work, int lap) {
  constexpr const char* kForward[] = {"#6baed6", "#c6dbef"};
  constexpr const char* kInput[] = {"#fd8d3c", "#fdd0a2"};
  constexpr const char* kWeight[] = {"#74c476", "#c7e9c0"};
  constexpr const char* kBackward[] = {"#e6ab02", "#ffe9a8"};
  const int shade = lap % 2;
  switch (work) {
    case ComputationType::kForward:
      return kForward[shade];
    case ComputationType::kBackward:
      return kBackward[shade];
    case ComputationType::kInputGradient:
      return kInput[shade];
    case ComputationType::kWeightGradient:
      return kWeight[shade];
    case ComputationType::kReduce:
      return "#969696";
  }
  return "#ffffff";
}

std::string text_at(double x, int y, const std::string& text) {
  return absl::StrFormat("<text x=\"%.2f\" y=\"%d\">%s</text>\n", x, y, text);
}

std::string box(const TimedAction& timed, int ranks, double scale, int y) {
  const Action& action = timed.action;
  const double x = kLeft + scale * timed.start, width = scale * (timed.end - timed.start);
  const std::string text = action.work == ComputationType::kReduce ? "R" : absl::StrCat(action.microbatch);
  std::string out = absl::StrFormat(
      "<g><title>%s: %g to %g</title><rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
      "stroke=\"#555\" "
      "stroke-width=\"0.5\"/>",
      to_string(action), timed.start, timed.end, x, y, width, kBar, colour(action.work, action.stage / ranks));
  if (width >= kLetter * static_cast<double>(text.size()))
    absl::StrAppendFormat(&out, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%s</text>", x + width / 2, y + 16,
                          text);
  return out + "</g>\n";
}

// Draws what a rank holds over time as steps, scaled so that `most` has the full height.
std::string memory_area(const std::vector<HeldActivations>& held, bool bytes, double most, double scale, int bottom) {
  if (held.empty() || most <= 0) return "";
  std::string path = absl::StrFormat("M%.2f %d", kLeft + scale * held.front().time, bottom);
  for (std::size_t i = 0; i < held.size(); ++i) {
    const double amount = bytes ? static_cast<double>(held[i].bytes) : held[i].activations;
    const double end = i + 1 < held.size() ? held[i + 1].time : held[i].time;
    absl::StrAppendFormat(&path, "V%.2fH%.2f", bottom - kMemory * amount / most, kLeft + scale * end);
  }
  const HeldActivations peak = peak_held(held);
  return absl::StrFormat("<g><title>at most %s from %g on</title><path d=\"%sV%dZ\" fill=\"#bdbdbd\"/></g>\n",
                         bytes ? bytes_text(peak.bytes) : counted(peak.activations, "activation"), peak.time, path,
                         bottom);
}

std::string legend(int y) {
  std::string out;
  int x = kLeft;
  const auto add = [&](const std::string& fill, const std::string& name) {
    absl::StrAppendFormat(&out, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y, fill);
    out += text_at(x + 16, y + 10, name);
    x += 40 + static_cast<int>(kLetter * static_cast<double>(name.size()));
  };
  add(colour(ComputationType::kForward, 0), "F forward");
  add(colour(ComputationType::kBackward, 0), "B backward");
  add(colour(ComputationType::kInputGradient, 0), "I input gradient");
  add(colour(ComputationType::kWeightGradient, 0), "W weight gradient");
  add(colour(ComputationType::kReduce, 0), "R reduction");
  add("#bdbdbd", "activations held");
  return out + text_at(x, y + 10, "lighter: the rank's later stages");
}

double max_over_ranks(const std::vector<std::vector<HeldActivations>>& held, bool bytes) {
  double most = 0;
  for (const std::vector<HeldActivations>& rank : held) {
    const HeldActivations peak = peak_held(rank);
    most = std::max(most, bytes ? static_cast<double>(peak.bytes) : peak.activations);
  }
  return most;
}

// Makes the shortest pass wide enough for a label, within what viewers can show.
double scale_of(const Simulation& simulation) {
  double shortest = simulation.makespan;
  for (const RankTimeline& rank : simulation.ranks) {
    for (const TimedAction& timed : rank.actions) {
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
    }
  }
  if (shortest <= 0) return 1;
  return std::min(26.0 / shortest, 12000.0 / simulation.makespan);
}

}  // namespace

std::string draw_svg(const Schedule& schedule, const Simulation& simulation, const DrawOptions& options) {
  const bool bytes = !options.stage_bytes.empty();
  const double scale = scale_of(simulation);
  const int width = std::max(kLeast, kLeft + static_cast<int>(std::ceil(scale * simulation.makespan)) + kRight);
  const int height = kTop + kRow * schedule.ranks + 34;
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"%d\" y=\"24\" font-size=\"15\">%s</text>\n",
      width, height, width, height, kLeft, title_of(schedule, simulation));
  std::vector<std::vector<HeldActivations>> held;
  for (const RankTimeline& rank : simulation.ranks) held.push_back(held_over_time(rank, options.stage_bytes));
  const double most = max_over_ranks(held, bytes);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const RankTimeline& timeline = simulation.ranks[rank];
    const int y = kTop + kRow * rank;
    out += text_at(8, y + 16, absl::StrCat("rank ", rank));
    for (const TimedAction& timed : timeline.actions) {
      if (timed.end > timed.start) out += box(timed, schedule.ranks, scale, y);
    }
    out += memory_area(held[rank], bytes, most, scale, y + kBar + 2 + kMemory);
    const double right = kLeft + scale * simulation.makespan + 8;
    out += text_at(right, y + 16, absl::StrCat("bubble ", percent_text(timeline.bubble)));
    out += text_at(right, y + kBar + kMemory,
                   absl::StrCat("holds ", bytes ? bytes_text(peak_held(held[rank]).bytes) + ", " : "",
                                counted(timeline.peak_activations, "activation")));
  }
  return out + legend(kTop + kRow * schedule.ranks + 10) + "</svg>\n";
}

}  // namespace titan::pipeline
