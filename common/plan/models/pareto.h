#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Which results of a block recomputation keeps: a knapsack, solved exactly.
namespace titan::models {

// Something that may be kept: what it takes and what it saves.
struct KeepItem {
  int64_t bytes = 0;
  double flops = 0;
};

struct KeepChoice {
  int64_t bytes = 0;
  double flops = 0;         // Saved.
  std::vector<bool> taken;  // By item.
};

// The choices that no other beats in both bytes and FLOPs, by ascending bytes: from nothing to everything. Exact up to
// kMostChoices of them; beyond that only as many, evenly spread, are carried on.
inline constexpr size_t kMostChoices = 20000;
std::vector<KeepChoice> pareto_choices(const std::vector<KeepItem>& items);

// The best of them within `bytes`.
const KeepChoice& best_within(const std::vector<KeepChoice>& choices, int64_t bytes);

// A picture that stands alone: FLOPs computed again over bytes kept, the chosen point marked.
std::string draw_choices(const std::string& title, const std::vector<KeepChoice>& choices, const KeepChoice& chosen);

}  // namespace titan::models
