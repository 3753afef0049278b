#include "worker/rank/kernels/choice.h"

#include <atomic>

namespace titan::kernels {
namespace {

constexpr int kReference = -1;
std::atomic<int> chosen{kReference};
std::atomic<const DeviceKernels*> for_part[3] = {};

}  // namespace

std::optional<Level> chosen_level() {
  const int level = chosen.load(std::memory_order_relaxed);
  return level == kReference ? std::nullopt : std::optional<Level>(static_cast<Level>(level));
}

bool choose(std::string_view written) {
  const std::optional<Level> best = best_level();
  std::optional<Level> level;
  if (written == "auto") {
    level = best;
  } else if (written != "reference") {
    level = level_named(written);
    if (!level || !best || *best < *level) return false;
  }
  chosen.store(level ? static_cast<int>(*level) : kReference, std::memory_order_relaxed);
  return true;
}

void choose_on_device(const DeviceKernels* kernels, DeviceParts parts) {
  const auto set = [&](TrainingPart part, bool wanted) {
    for_part[static_cast<int>(part)].store(wanted ? kernels : nullptr, std::memory_order_relaxed);
  };
  set(TrainingPart::kModel, parts.model);
  set(TrainingPart::kLoss, parts.loss);
  set(TrainingPart::kOptimizer, parts.optimizer);
}

const DeviceKernels* chosen_on_device(TrainingPart part) {
  return for_part[static_cast<int>(part)].load(std::memory_order_relaxed);
}

}  // namespace titan::kernels
