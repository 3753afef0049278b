#pragma once

// Carries out the verb `profile`, and assembles ranks' traces from pieces.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// Assembles ranks' traces from pieces: {folder}/rank{R}_trace.json each, which has its name once it is whole. A piece
// that comes again after a lost connection is skipped.
class TraceFiles {
 public:
  struct Trace {
    int rank = 0;
    std::string node;
    std::string path;
    int64_t first_step = 0, last_step = 0;
    int64_t bytes = 0;
    bool whole = false;
  };

  // `folder`: "" for {job}_iteration_{last step} in the working folder.
  TraceFiles(std::string job, std::string folder, const std::vector<int>& ranks);
  ~TraceFiles();  // Removes what is incomplete.
  TraceFiles(const TraceFiles&) = delete;
  TraceFiles& operator=(const TraceFiles&) = delete;

  // Makes the named folder, so that a mistake is reported before any rank records. Errors: those of the file system.
  absl::Status prepare() const;
  // Returns whether this piece completes its trace. Errors: those of writing; DataLoss for a rank that was not
  // requested, or a missing piece.
  absl::StatusOr<bool> take(const v1::TraceChunk& chunk);

  const Trace& of(int rank) const { return traces_.at(rank); }
  const std::map<int, Trace>& all() const { return traces_; }
  const std::string& folder() const { return folder_; }

 private:
  absl::Status append(Trace& trace, const std::string& data) const;

  const std::string job_;
  std::string folder_;
  std::map<int, Trace> traces_;
};

}  // namespace titan::cli
