#include "worker/kernels/choice.h"

#include <atomic>

namespace titan::kernels {
namespace {

constexpr int kReference = -1;
std::atomic<int> chosen{kReference};
std::atomic<const DeviceKernels*> for_model{nullptr}, for_loss{nullptr};

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
  for_model.store(parts.model ? kernels : nullptr, std::memory_order_relaxed);
  for_loss.store(parts.loss ? kernels : nullptr, std::memory_order_relaxed);
}

const DeviceKernels* chosen_on_device(Part part) {
  return (part == Part::kModel ? for_model : for_loss).load(std::memory_order_relaxed);
}

}  // namespace titan::kernels
