#pragma once

// All ranks agree on the candidate to load: each rank reports on its part (LoadReport), and CheckpointLoader tries the
// candidates in order until all ranks could read one. load_candidate.h lists them, and reads one rank's part.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/checkpoint/loading/load_candidate.h"
#include "worker/rank/checkpoint/steps/session.h"

namespace titan::checkpoint {

// The report of one or several ranks on a load: whether they could read their part, and which tensors have no slice on
// them.
struct LoadReport {
  absl::Status status;
  std::vector<size_t> unclaimed;  // Indices of the candidate's tensors (StagedLoad::held), ascending.
};

std::string to_text(const LoadReport& word);
LoadReport load_report_from_text(const std::string& text);

// Joins the reports of several ranks. A tensor that does not fit outweighs a possibly bad disk, because no older step
// would fit either. `unclaimed` keeps the tensors that have no slice on any of the ranks.
std::string join_load_reports(const std::vector<std::string>& words);

// This rank's part of the agreement and the load.
class CheckpointLoader {
 public:
  explicit CheckpointLoader(Session& session) : session_(session) {}

  absl::StatusOr<LoadResult> load(std::vector<Slice>& slices, StatePart part);  // See Checkpointer::load.

 private:
  std::vector<Candidate> plan(StatePart part);
  absl::Status propose(std::vector<Candidate>& plan, size_t& next, Candidate& candidate);
  absl::Status agree(const std::string& topic, const Candidate& candidate, const absl::StatusOr<StagedLoad>& staged);
  absl::Status fill_verified(const Candidate& candidate, const std::vector<Slice>& slices);
  LoadResult take(const Candidate& candidate, StagedLoad& staged, std::vector<Slice>& slices, StatePart part);
  absl::Status clean_leftovers();
  void reject(const Candidate& candidate, const absl::Status& why) const;
  void warn(const std::string& message) const;
  void warn_of_unread_weights() const;

  Session& session_;
};

}  // namespace titan::checkpoint
