#pragma once

// How the ranks agree on what is loaded. What is tried, and how one rank reads its part, is loading.h's.

#include <string>
#include <vector>

#include "worker/rank/checkpoint/loading/loading.h"
#include "worker/rank/checkpoint/steps/session.h"

namespace titan::checkpoint {

class Loader {
 public:
  explicit Loader(Session& session) : session_(session) {}

  absl::StatusOr<LoadResult> load(std::vector<Slice>& slices, Part part);  // See Checkpointer::load.

 private:
  std::vector<Candidate> plan(Part part);
  absl::Status propose(std::vector<Candidate>& plan, size_t& next, Candidate& candidate);
  absl::Status agree(const std::string& topic, const Candidate& candidate, const absl::StatusOr<StagedLoad>& staged);
  absl::Status fill_verified(const Candidate& candidate, const std::vector<Slice>& slices);
  LoadResult take(const Candidate& candidate, StagedLoad& staged, std::vector<Slice>& slices, Part part);
  absl::Status clean_leftovers();
  void reject(const Candidate& candidate, const absl::Status& why) const;
  void warn(const std::string& message) const;
  void warn_of_unread_weights() const;

  Session& session_;
};

}  // namespace titan::checkpoint
