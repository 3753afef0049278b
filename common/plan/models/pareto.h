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
// kMaxChoices; beyond that only as many, evenly spread, are kept after each item.
inline constexpr size_t kMaxChoices = 20000;
std::vector<ParetoPoint> pareto_front(const std::vector<KnapsackItem>& items);

// Returns the best choice within `bytes`.
const ParetoPoint& best_within(const std::vector<ParetoPoint>& choices, int64_t bytes);

// Draws a self-contained picture: recomputed FLOPs over kept bytes, with the chosen point marked.
std::string draw_pareto_front(const std::string& title, const std::vector<ParetoPoint>& choices,
                              const ParetoPoint& chosen);

}  // namespace titan::models
