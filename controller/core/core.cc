#include "controller/core/core.h"

#include <utility>
#include <variant>

#include "controller/core/step.h"

namespace titan::core {

Effects Core::load(const std::vector<store::Record>& records, const std::vector<std::string>& lost, const Now& now) {
  Effects effects;
  Step step{state_, options_, now, effects};
  load_all(step, records, lost);
  end_step(step);
  return effects;
}

Effects Core::step(Input input, const Now& now) {
  Effects effects;
  Step step{state_, options_, now, effects};
  std::visit([&step](auto& what) { take(step, what); }, input);
  end_step(step);
  return effects;
}

absl::StatusOr<JobViewPtr> Core::would_create(const job::SchedulingSpec& spec) const {
  return core::would_create(state_, options_, spec);
}

absl::StatusOr<JobViewPtr> Core::would_update(const UpdateJob& input) const {
  return core::would_update(state_, input);
}

std::optional<scheduler::Misfit> Core::misfit(const job::SchedulingSpec& spec) const {
  return state_.queue.misfit(scheduler_job(spec));
}

std::vector<NodeView> Core::nodes() const { return node_views(state_); }

SessionId Core::session_of(const std::string& node) const { return core::session_of(state_.nodes, node); }

}  // namespace titan::core
