// Does everything that depends only on time, in this order.

#include "controller/core/step.h"

namespace titan::core {

void take(Step& step, const Tick&) {
  excuse_own_pause(step);
  for (const Node* node : step.state.nodes.mark_suspects(step.now.monotonic)) update_scheduler_node(step, *node);
  for (Node* node : step.state.nodes.end_flapping(step.now.monotonic)) note_steady(step, *node);
  check_leases(step);
  check_hangs(step);
  check_diagnoses(step);
  check_deadlines(step);
  check_time_limits(step);
  check_left_behind(step);
  estimate_ends(step.state, step.now);
  explain_waits(step);
  drop_expired_preferences(step);
  forget_refusals(step);
  if (schedule_is_due(step.state, step.now)) request_schedule(step, /*urgent=*/true);
  if (!step.state.cycles.has_begun()) explain_reconciling(step);
  delete_old_jobs(step);
  forget_deleted_jobs(step);
}

}  // namespace titan::core
