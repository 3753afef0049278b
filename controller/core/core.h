#pragma once

// The one decider about jobs, attempts and nodes, as a value: an input and the time go in, effects come out. It reads
// no clock, no disk and no network, has no threads and no randomness of its own, and never waits. Its state is ahead of
// the store by the changes that are on their way there; whoever runs it writes them in order and says when they are
// durable.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/core/effect.h"
#include "controller/core/input.h"
#include "controller/core/options.h"
#include "controller/core/state.h"
#include "controller/core/view.h"
#include "controller/scheduler/scheduler.h"
#include "controller/store/store.h"

namespace titan::core {

class Core {
 public:
  explicit Core(Options options) : options_(std::move(options)), state_(options_) {}

  // Once, before any step, with every record below loaded_prefixes(), by key. Scheduling begins when every known node
  // has registered, or after one lease. The views among the effects carry their revisions. `lost`: keys of records that
  // the store itself could not read.
  static const std::vector<std::string>& loaded_prefixes();
  Effects load(const std::vector<store::Record>& records, const std::vector<std::string>& lost, const Now& now);

  Effects step(Input input, const Now& now);

  // Reads. They show what is decided, which may not be durable yet.

  // The checks of CreateJob without its effect; the job as it would be. Errors: those of CreateJob.
  absl::StatusOr<JobViewPtr> would_create(const job::Spec& spec) const;
  // Likewise for UpdateJob.
  absl::StatusOr<JobViewPtr> would_update(const UpdateJob& input) const;
  // Why the job could not run on the nodes there are, if all their devices were free; nothing when it could.
  std::optional<scheduler::Misfit> misfit(const job::Spec& spec) const;
  // All nodes by name, made anew: what the effects of all steps so far have shown.
  std::vector<NodeView> nodes() const;
  SessionId session_of(const std::string& node) const;  // 0: nobody speaks for it now.
  bool scheduling() const { return state_.cycles.has_begun(); }

 private:
  const Options options_;
  State state_;
};

// What a job asks of the scheduler.
scheduler::Job asked_for(const job::Spec& spec);

// NotFound, JOB_NOT_FOUND. `what`: its name or uid.
absl::Status no_such_job(const std::string& what);
absl::Status no_such_node(const std::string& name);

}  // namespace titan::core
