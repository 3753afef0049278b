#include "common/plan/models/pareto.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace titan::models {
namespace {

// Sorts the choices, drops those that another one beats, and thins them to kMaxChoices.
void drop_dominated(std::vector<ParetoPoint>& choices) {
  std::sort(choices.begin(), choices.end(), [](const ParetoPoint& a, const ParetoPoint& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.flops > b.flops;
  });
  std::vector<ParetoPoint> best;
  for (ParetoPoint& choice : choices) {
    if (best.empty() || choice.flops > best.back().flops) best.push_back(std::move(choice));
  }
  if (best.size() > kMaxChoices) {
    std::vector<ParetoPoint> spread;
    for (size_t i = 0; i < kMaxChoices; ++i)
      spread.push_back(std::move(best[i * (best.size() - 1) / (kMaxChoices - 1)]));
    best = std::move(spread);
  }
  choices = std::move(best);
}

}  // namespace

std::vector<ParetoPoint> pareto_front(const std::vector<KnapsackItem>& items) {
  std::vector<ParetoPoint> choices = {{0, 0, std::vector<bool>(items.size())}};
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t before = choices.size();
    for (size_t c = 0; c < before; ++c) {
      ParetoPoint more = choices[c];
      more.bytes += items[i].bytes;
      more.flops += items[i].flops;
      more.taken[i] = true;
      choices.push_back(std::move(more));
    }
    drop_dominated(choices);
  }
  return choices;
}

const ParetoPoint& best_within(const std::vector<ParetoPoint>& choices, int64_t bytes) {
  size_t best = 0;
  while (best + 1 < choices.size() && choices[best + 1].bytes <= bytes) ++best;
  return choices[best];
}

std::string draw_pareto_front(const std::string& title, const std::vector<ParetoPoint>& choices,
                              const ParetoPoint& chosen) {
  constexpr int kLeft = 70, kTop = 40, kWidth = 640, kHeight = 360;
  const double max_bytes = std::max<double>(1, static_cast<double>(choices.back().bytes));
  const double max_flops = std::max(1.0, choices.back().flops);
  const auto x = [&](const ParetoPoint& c) { return kLeft + kWidth * static_cast<double>(c.bytes) / max_bytes; };
  const auto y = [&](const ParetoPoint& c) { return kTop + kHeight * c.flops / max_flops; };
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"%d\" y=\"24\" font-size=\"15\">%s</text>\n"
      "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#999\"/>\n",
      kLeft + kWidth + 40, kTop + kHeight + 60, kLeft, title, kLeft, kTop, kWidth, kHeight);
  absl::StrAppendFormat(&out, "<text x=\"%d\" y=\"%d\">bytes kept per microbatch: 0 to %d</text>\n", kLeft,
                        kTop + kHeight + 20, choices.back().bytes);
  absl::StrAppendFormat(&out,
                        "<text x=\"%d\" y=\"%d\">FLOPs computed again, from %.3g (top) to 0; this job: %d bytes, "
                        "%.3g FLOPs again</text>\n<polyline fill=\"none\" stroke=\"#3182bd\" points=\"",
                        kLeft, kTop + kHeight + 40, choices.back().flops, chosen.bytes,
                        choices.back().flops - chosen.flops);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) absl::StrAppendFormat(&out, "%.1f,%.1f ", x(choices[i]), y(choices[i - 1]));
    absl::StrAppendFormat(&out, "%.1f,%.1f ", x(choices[i]), y(choices[i]));
  }
  absl::StrAppendFormat(&out, "\"/>\n<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"#e6550d\"/>\n</svg>\n", x(chosen),
                        y(chosen));
  return out;
}

}  // namespace titan::models
