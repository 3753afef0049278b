#pragma once

// All samples of a dataset, numbered over its files, in any order.

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "worker/rank/data/samples/sample_file.h"

namespace titan::data {

// The samples of files: sample number 0 is the first of the first file. Thread-safe.
class SampleSet {
 public:
  struct Options {
    std::vector<std::string> files;  // In the dataset's order (sample_files.h).
    SampleKind kind;
    std::string index_folder = {};  // Keeps the indexes of files (IndexStore); "": in memory.
    int rank = 0, ranks = 1;        // Ranks that open the set at the same time, and share the work of indexing.
    size_t open_files = 128;        // Files kept open.
  };
  // Opens the files. Files without an index are scanned: each rank begins with its share of them, stores their indexes,
  // and then looks at the others in a separate random order, so that ranks rarely scan the same file and none waits for
  // another. Errors: those of SampleFile::open(); InvalidArgument if there are no samples.
  static absl::StatusOr<std::shared_ptr<SampleSet>> open(Options options);

  // Returns the number of samples, including unusable ones.
  int64_t samples() const { return firsts_.back(); }

  // Reads a sample. Errors: those of SampleFile::read().
  absl::StatusOr<Sample> read(int64_t sample);

  // Returns the beginning of a sample's image. Errors: those of SampleFile::image_start().
  absl::StatusOr<std::string> image_start(int64_t sample, int64_t bytes);

  // Returns a checksum of the files' names without folders, and of their numbers of samples. It is the same on every
  // rank, and after the dataset was moved.
  const std::string& facts() const { return facts_; }

  // Returns warnings about files that were found while they were indexed or read.
  std::vector<std::string> take_warnings();

  // Ends reads from a hub, now and later, with Cancelled.
  void stop();

 private:
  explicit SampleSet(Options options) : options_(std::move(options)), store_(options_.index_folder) {}
  absl::Status count_files();
  absl::StatusOr<int64_t> count(size_t file);
  absl::StatusOr<std::shared_ptr<SampleFile>> get(size_t file);
  struct Found {
    std::string path;
    std::shared_ptr<SampleFile> file;
    int64_t number = 0;        // In the file.
    std::string problem = {};  // Why the file no longer has the sample; empty: it has.
  };
  absl::StatusOr<Found> find(int64_t sample);

  const Options options_;
  IndexStore store_;
  std::vector<int64_t> firsts_ = {0};  // Number of the first sample of each file, then of all samples.
  std::string facts_;

  sync::Mutex mutex_;
  std::list<std::pair<size_t, std::shared_ptr<SampleFile>>> open_ TITAN_GUARDED_BY(mutex_);  // Newest first.
  std::vector<std::string> warnings_ TITAN_GUARDED_BY(mutex_);
  std::vector<bool> warned_ TITAN_GUARDED_BY(mutex_);  // One per file.
};

}  // namespace titan::data
