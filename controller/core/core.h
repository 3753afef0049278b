#pragma once

// Decides everything about jobs, attempts and nodes, as a pure value: an input and the time go in, effects come out. It
// reads no clock, disk or network, has no threads, takes random numbers from CoreOptions::jitter only, and never waits.
// Its state runs ahead of the store by the changes that are not durable yet. The caller writes the changes in order and
// reports the outcome of each that has a token.

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
  explicit Core(CoreOptions options) : options_(std::move(options)), state_(options_) {}

  // Call once, before any step, with every record below loaded_prefixes(), sorted by key. `lost` has the keys of
  // records that the store itself could not read. The first scheduling cycle runs when every known node has registered,
  // or after one lease plus 2 ms per known node. The views in the effects carry their revisions.
  static const std::vector<std::string>& loaded_prefixes();
  Effects load(const std::vector<store::Record>& records, const std::vector<std::string>& lost, const Now& now);

  // Applies one input. Carry out the effects of the steps in the order of the steps.
  Effects step(Input input, const Now& now);

  // The reads below show what is decided, which may not be durable yet.

  // Checks a new job and returns it as it would be, without creating it. Errors: AlreadyExists (JOB_ID_IN_USE),
  // FailedPrecondition (DUMP_FOLDER_IN_USE).
  absl::StatusOr<JobViewPtr> would_create(const job::SchedulingSpec& spec) const;
  // Does the same for an update. Errors: those of UpdateJob except ResourceExhausted.
  absl::StatusOr<JobViewPtr> would_update(const UpdateJob& input) const;
  // Explains why the job could not run on the known nodes even if all their devices were free. Nothing if it could.
  std::optional<scheduler::Misfit> misfit(const job::SchedulingSpec& spec) const;
  // Returns all nodes by name, built from the state: the same views that the effects of all steps so far have
  // published.
  std::vector<NodeView> nodes() const;
  SessionId session_of(const std::string& node) const;  // 0: the node has no open session.
  // False until the controller may place jobs after its start.
  bool scheduling() const { return state_.cycles.has_begun(); }

 private:
  const CoreOptions options_;
  State state_;
};

// Returns the devices, ranks and priority that the job requests. The uid, name and order are not set.
scheduler::PendingJob scheduler_job(const job::SchedulingSpec& spec);

// Returns NotFound (JOB_NOT_FOUND). `what` is the job's name or uid.
absl::Status no_such_job(const std::string& what);
absl::Status no_such_node(const std::string& name);  // Returns NotFound (NODE_NOT_FOUND).

}  // namespace titan::core
