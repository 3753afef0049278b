#pragma once

// Indexes of files of samples: where each sample lies. An index is made by one scan of the file, and kept in a folder
// that ranks share and later jobs find.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"

namespace titan::data {

// The bytes of a file that hold a sample.
struct SampleExtent {
  int64_t offset = 0, size = 0;

  bool operator==(const SampleExtent&) const = default;
};

struct SampleIndex {
  std::vector<SampleExtent> samples;
  std::string warning;  // About the file, for the job's log; empty: none.

  // Convert to bytes with checksums, and back. Errors: DataLoss for anything that to_bytes() did not make.
  std::string to_bytes() const;
  static absl::StatusOr<SampleIndex> from_bytes(std::string_view bytes);
};

// Keeps the index of each file in a separate file, which is written whole. Several ranks may make the same one at the
// same time, with the same content. Indexes that cannot be stored are kept in memory. Thread-safe.
//
// The counts of text (block_counts.h) have one small record for each block in one file. Here a file of thousands of
// samples has a record for each of them, and a rank that finds a file counted also needs its positions.
class IndexStore {
 public:
  // `folder` is made when needed; "": all indexes are kept in memory.
  explicit IndexStore(std::string folder) : folder_(std::move(folder)) {}

  using Scan = absl::FunctionRef<absl::StatusOr<SampleIndex>()>;
  // Returns the index of the file that `facts` identifies (facts_of), which `scan` makes if it is missing or damaged.
  // Errors: those of `scan`.
  absl::StatusOr<std::shared_ptr<const SampleIndex>> get(const std::string& facts, Scan scan);
  // Returns the number of samples in an index that exists, without reading all of it.
  std::optional<int64_t> count(const std::string& facts) const;

 private:
  std::string path_of(const std::string& facts) const;

  const std::string folder_;
  mutable sync::Mutex mutex_;
  std::map<std::string, std::shared_ptr<const SampleIndex>> not_stored_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::data
