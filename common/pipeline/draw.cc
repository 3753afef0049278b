#include "common/pipeline/draw.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace titan::pipeline {
namespace {

std::string percent(double share) { return absl::StrFormat("%.1f %%", 100 * share + 0.0); }

std::string title(const Schedule& schedule, const Simulation& simulation) {
  return absl::StrCat(schedule.name, ": ", schedule.ranks, " ranks, ", schedule.stages, " stages, ",
                      schedule.microbatches, " microbatches; a step takes ", simulation.makespan, ", bubble ",
                      percent(simulation.bubble));
}

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

std::string row_text(const RankTimeline& rank, double unit, std::size_t width) {
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
  return row;
}

std::string memory(const RankTimeline& rank) {
  std::vector<std::string> parts;
  for (const auto& [stage, peak] : rank.peak_by_stage) parts.push_back(absl::StrCat("stage ", stage, ": ", peak));
  return parts.size() < 2 ? absl::StrCat(rank.peak_activations)
                          : absl::StrCat(rank.peak_activations, " (", absl::StrJoin(parts, ", "), ")");
}

std::string colour(Work work, int lap) {
  constexpr const char* kForward[] = {"#6baed6", "#c6dbef"};
  constexpr const char* kInput[] = {"#fd8d3c", "#fdd0a2"};
  constexpr const char* kWeight[] = {"#74c476", "#c7e9c0"};
  constexpr const char* kBackward[] = {"#e6ab02", "#ffe9a8"};
  const int shade = lap % 2;
  switch (work) {
    case Work::kForward:
      return kForward[shade];
    case Work::kBackward:
      return kBackward[shade];
    case Work::kInputGradient:
      return kInput[shade];
    case Work::kWeightGradient:
      return kWeight[shade];
    case Work::kReduce:
      return "#969696";
  }
  return "#ffffff";
}

constexpr int kLeft = 60, kTop = 56, kRow = 30, kBar = 24, kRight = 230;

std::string box(double x, double y, double width, const std::string& fill, const std::string& text,
                const std::string& tip) {
  std::string out = absl::StrFormat(
      "<g><title>%s</title><rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"#555\" "
      "stroke-width=\"0.5\"/>",
      tip, x, y, width, kBar, fill);
  if (!text.empty() && width >= 7.0 * static_cast<double>(text.size()))
    absl::StrAppendFormat(&out, "<text x=\"%.2f\" y=\"%.2f\" text-anchor=\"middle\">%s</text>", x + width / 2, y + 16,
                          text);
  return out + "</g>\n";
}

std::string legend(int y) {
  std::string out;
  int x = kLeft;
  for (const auto& [work, name] : {std::pair{Work::kForward, "F forward"},
                                   {Work::kBackward, "B backward"},
                                   {Work::kInputGradient, "I input gradient"},
                                   {Work::kWeightGradient, "W weight gradient"},
                                   {Work::kReduce, "R reduction"}}) {
    absl::StrAppendFormat(&out,
                          "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" "
                          "y=\"%d\">%s</text>\n",
                          x, y, colour(work, 0), x + 16, y + 10, name);
    x += 140;
  }
  return out + absl::StrFormat("<text x=\"%d\" y=\"%d\">lighter: the rank's later stages</text>\n", x, y + 10);
}

}  // namespace

std::string draw_text(const Schedule& schedule, const Simulation& simulation) {
  const double unit = column(simulation);
  std::size_t width = 0;
  for (const RankTimeline& rank : simulation.ranks) {
    for (const TimedAction& timed : rank.actions) width = std::max(width, label(timed.action).size() + 1);
  }
  std::string out = title(schedule, simulation) + "\n\n";
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::string row = row_text(simulation.ranks[rank], unit, width);
    row.resize(row.find_last_not_of(' ') + 1);
    absl::StrAppendFormat(&out, "rank %-3d %s\n", rank, row);
  }
  absl::StrAppendFormat(&out, "\n%-5s %-14s %-9s %s\n", "rank", "stages", "bubble", "most activations held");
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    absl::StrAppendFormat(&out, "%-5d %-14s %-9s %s\n", rank, absl::StrJoin(schedule.stages_of(rank), " "),
                          percent(simulation.ranks[rank].bubble), memory(simulation.ranks[rank]));
  }
  return out;
}

std::string draw_svg(const Schedule& schedule, const Simulation& simulation) {
  // Wide enough for a label in the shortest pass, within what viewers show.
  const double scale = std::min(26.0 / column(simulation), 12000.0 / std::max(simulation.makespan, 1e-9));
  const int width = kLeft + static_cast<int>(std::ceil(scale * simulation.makespan)) + kRight;
  const int height = kTop + kRow * schedule.ranks + 34;
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"%d\" y=\"24\" font-size=\"15\">%s</text>\n",
      std::max(width, 1000), height, kLeft, title(schedule, simulation));
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const int y = kTop + kRow * rank;
    absl::StrAppendFormat(&out, "<text x=\"8\" y=\"%d\">rank %d</text>\n", y + 16, rank);
    for (const TimedAction& timed : simulation.ranks[rank].actions) {
      if (timed.end <= timed.start) continue;
      const std::string text = timed.action.work == Work::kReduce ? "R" : absl::StrCat(timed.action.microbatch);
      absl::StrAppend(&out, box(kLeft + scale * timed.start, y, scale * (timed.end - timed.start),
                                colour(timed.action.work, timed.action.stage / schedule.ranks), text,
                                absl::StrFormat("%s: %g to %g", to_string(timed.action), timed.start, timed.end)));
    }
    absl::StrAppendFormat(&out, "<text x=\"%.2f\" y=\"%d\">bubble %s, holds %s</text>\n",
                          kLeft + scale * simulation.makespan + 8, y + 16, percent(simulation.ranks[rank].bubble),
                          absl::StrCat(simulation.ranks[rank].peak_activations));
  }
  return out + legend(kTop + kRow * schedule.ranks + 10) + "</svg>\n";
}

}  // namespace titan::pipeline
