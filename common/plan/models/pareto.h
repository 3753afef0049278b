#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Chooses which results of a block recomputation keeps: a knapsack problem, solved exactly.
namespace titan::models {

// A result that may be kept: its memory and the FLOPs that keeping it saves.
struct KnapsackItem {
  int64_t bytes = 0;
  double flops = 0;
};

struct ParetoPoint {
  int64_t bytes = 0;
  double flops = 0;         // FLOPs saved.
  std::vector<bool> taken;  // By item.
};

// Returns the Pareto-optimal choices in bytes and FLOPs, by ascending bytes: from nothing to everything. Exact up to
// kMaxChoices; if an item leads to more, only this many, evenly spread, are kept.
inline constexpr size_t kMaxChoices = 20000;
std::vector<ParetoPoint> pareto_front(const std::vector<KnapsackItem>& items);

// Returns the choice that saves the most FLOPs within `bytes`; the first if none fits.
const ParetoPoint& best_within(const std::vector<ParetoPoint>& choices, int64_t bytes);

// Returns a self-contained SVG picture: recomputed FLOPs over kept bytes, with the chosen point marked.
std::string draw_pareto_front(const std::string& title, const std::vector<ParetoPoint>& choices,
                              const ParetoPoint& chosen);

}  // namespace titan::models
