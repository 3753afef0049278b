#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text/counted.h"
#include "common/plan/pipeline/draw.h"
#include "common/plan/pipeline/memory.h"

namespace titan::pipeline {
namespace {

constexpr int kLeft = 60, kTop = 56, kBar = 24, kMemory = 16, kRow = kBar + kMemory + 8, kRight = 260;
constexpr int kLeast = 1000;  // Width that title and legend need.
constexpr double kLetter = 7;

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

std::string text_at(double x, int y, const std::string& text) {
  return absl::StrFormat("<text x=\"%.2f\" y=\"%d\">%s</text>\n", x, y, text);
}

std::string box(const TimedAction& timed, int ranks, double scale, int y) {
  const Action& action = timed.action;
  const double x = kLeft + scale * timed.start, width = scale * (timed.end - timed.start);
  const std::string text = action.work == Work::kReduce ? "R" : absl::StrCat(action.microbatch);
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

// What a rank holds over time, as steps whose height is a share of `most`.
std::string memory_area(const std::vector<Held>& held, bool bytes, double most, double scale, int bottom) {
  if (held.empty() || most <= 0) return "";
  std::string path = absl::StrFormat("M%.2f %d", kLeft + scale * held.front().time, bottom);
  for (std::size_t i = 0; i < held.size(); ++i) {
    const double amount = bytes ? static_cast<double>(held[i].bytes) : held[i].activations;
    const double end = i + 1 < held.size() ? held[i + 1].time : held[i].time;
    absl::StrAppendFormat(&path, "V%.2fH%.2f", bottom - kMemory * amount / most, kLeft + scale * end);
  }
  const Held peak = most_held(held);
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
  add(colour(Work::kForward, 0), "F forward");
  add(colour(Work::kBackward, 0), "B backward");
  add(colour(Work::kInputGradient, 0), "I input gradient");
  add(colour(Work::kWeightGradient, 0), "W weight gradient");
  add(colour(Work::kReduce, 0), "R reduction");
  add("#bdbdbd", "activations held");
  return out + text_at(x, y + 10, "lighter: the rank's later stages");
}

double most_of_all(const std::vector<std::vector<Held>>& held, bool bytes) {
  double most = 0;
  for (const std::vector<Held>& rank : held) {
    const Held peak = most_held(rank);
    most = std::max(most, bytes ? static_cast<double>(peak.bytes) : peak.activations);
  }
  return most;
}

// Wide enough for a label in the shortest pass, within what viewers show.
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
  std::vector<std::vector<Held>> held;
  for (const RankTimeline& rank : simulation.ranks) held.push_back(held_over_time(rank, options.stage_bytes));
  const double most = most_of_all(held, bytes);
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
                   absl::StrCat("holds ", bytes ? bytes_text(most_held(held[rank]).bytes) + ", " : "",
                                counted(timeline.peak_activations, "activation")));
  }
  return out + legend(kTop + kRow * schedule.ranks + 10) + "</svg>\n";
}

}  // namespace titan::pipeline
