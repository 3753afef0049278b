#include "worker/rank/optim/optimizer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "worker/rank/optim/adam.h"
#include "worker/rank/optim/muon.h"

namespace titan::optim {

at::Tensor& SlotState::operator[](std::string_view name) {
  for (Named& one : tensors) {
    if (one.name == name) return one.value;
  }
  TORCH_CHECK(false, "an optimizer's slot has no state \"", std::string(name), "\"");
}

int64_t SlotState::bytes() const {
  int64_t sum = 0;
  for (const Named& one : tensors) sum += static_cast<int64_t>(one.value.nbytes());
  return sum;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<Slot> slots) {
  return make_grouped_optimizer({options}, std::move(slots));
}

std::unique_ptr<Optimizer> make_grouped_optimizer(std::vector<OptimizerOptions> groups, std::vector<Slot> slots,
                                                  MatrixMesh mesh) {
  TORCH_CHECK(!groups.empty(), "an optimizer needs at least one group");
  for (const OptimizerOptions& options : groups) {
    TORCH_CHECK(options.name == "AdamW" || options.name == "Adam" || options.name == "Muon", "optimizer.name: \"",
                options.name, "\" is not one of AdamW, Adam, Muon");
    TORCH_CHECK(options.implementation == groups.front().implementation,
                "optimizer.implementation differs between groups");
  }
  const bool muon =
      std::any_of(groups.begin(), groups.end(), [](const OptimizerOptions& options) { return options.name == "Muon"; });
  if (muon) return make_muon(std::move(groups), std::move(slots), std::move(mesh));
  return make_adam(std::move(groups), std::move(slots));
}

}  // namespace titan::optim
