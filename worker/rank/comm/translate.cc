#include "worker/rank/comm/translate.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>

namespace titan::comm {

bool is_lost_connection(const std::exception& error) {
  static constexpr std::string_view kWrongUse[] = {"gloo::EnforceNotMet", "gloo::InvalidOperationException"};
  const std::string type = c10::demangle(typeid(error).name());
  return type.starts_with("gloo::") && std::ranges::find(kWrongUse, type) == std::end(kWrongUse);
}

}  // namespace titan::comm
