#include "controller/core/continuation.h"

#include <utility>

namespace titan::core {

ChangeToken Expected::add(Continuation continuation) {
  waiting_.emplace(++last_, std::move(continuation));
  return last_;
}

std::optional<Continuation> Expected::take(ChangeToken token) {
  auto found = waiting_.extract(token);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

}  // namespace titan::core
