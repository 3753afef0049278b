#include "worker/runtime/step/optimizer_options.h"

#include "absl/strings/str_cat.h"

namespace titan::runtime {

optim::Options optimizer_options(const config::JobConfig& config) {
  const config::Optimizer& optimizer = config.optimizer;
  return {.name = optimizer.name,
          .implementation = optimizer.implementation,
          .beta1 = optimizer.beta1,
          .beta2 = optimizer.beta2,
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .state_dtype = optimizer.state_dtype,
          .stochastic_rounding = optimizer.stochastic_rounding,
          .seed = static_cast<uint64_t>(config.debug.seed.value_or(0))};
}

std::string state_dtype(const config::JobConfig& config) {
  return config.optimizer.state_dtype == "auto" ? config.training.dtype : config.optimizer.state_dtype;
}

std::string conversion_notice(const std::string& saved, const config::JobConfig& config) {
  const std::string here = state_dtype(config);
  if (saved == here) return "";
  const auto adjective = [](const std::string& type) { return type == "8bit" ? "8-bit codes" : type; };
  return absl::StrCat("the checkpoint's optimizer states were kept as ", adjective(saved), "; they go on as ",
                      adjective(here), " (optimizer.state_dtype = ", config.optimizer.state_dtype, ")");
}

}  // namespace titan::runtime
