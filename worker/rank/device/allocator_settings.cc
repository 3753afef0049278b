#include "worker/rank/device/allocator_settings.h"

#include <c10/util/env.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::device {
namespace {

// LibTorch reads the first variable that is set, even if it is empty, and ignores the others.
constexpr const char* kNames[] = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};

}  // namespace

std::optional<Variable> segments_setting(const EnvironmentLookup& environment, bool expandable) {
  const std::string wish = absl::StrCat("expandable_segments:", expandable ? "True" : "False");
  for (const char* name : kNames) {
    const std::optional<std::string> set = environment(name);
    if (!set) continue;
    if (absl::StrContains(*set, "expandable_segments") || absl::StrContains(*set, "backend")) return std::nullopt;
    return Variable{name, set->empty() ? wish : absl::StrCat(*set, ",", wish)};
  }
  return Variable{kNames[2], wish};
}

void set_segments(bool expandable) {
  const auto variable =
      segments_setting([](const std::string& name) { return c10::utils::get_env(name.c_str()); }, expandable);
  if (variable) c10::utils::set_env(variable->name.c_str(), variable->value.c_str());
}

}  // namespace titan::device
