#include "worker/rank/data/samples/sample_set.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/data/documents/permutation.h"
#include "worker/rank/data/samples/encodings_manifest.h"

namespace titan::data {

absl::StatusOr<std::shared_ptr<SampleSet>> SampleSet::open(Options options) {
  std::shared_ptr<SampleSet> set(new SampleSet(std::move(options)));
  TITAN_RETURN_IF_ERROR(set->count_files());
  return set;
}

absl::Status SampleSet::count_files() {
  const std::vector<std::string>& files = options_.files;
  const auto all = static_cast<int64_t>(files.size());
  {
    sync::Lock lock(mutex_);
    warned_.resize(files.size());
  }
  std::vector<std::optional<int64_t>> counts(files.size());
  const auto count_one = [&](int64_t file) -> absl::Status {
    std::optional<int64_t>& known = counts[static_cast<size_t>(file)];
    if (known.has_value()) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(known, count(static_cast<size_t>(file)));
    return absl::OkStatus();
  };
  const int64_t begin = all * options_.rank / options_.ranks, end = all * (options_.rank + 1) / options_.ranks;
  for (int64_t file = begin; file < end; ++file) TITAN_RETURN_IF_ERROR(count_one(file));
  const Permutation others(all, /*seed=*/0, /*pass=*/options_.rank);
  for (int64_t i = 0; i < all; ++i) TITAN_RETURN_IF_ERROR(count_one(others(i)));

  std::string facts;
  for (size_t i = 0; i < files.size(); ++i) {
    firsts_.push_back(firsts_.back() + *counts[i]);
    absl::StrAppend(&facts, std::filesystem::path(files[i]).filename().string(), ",", *counts[i], "|");
  }
  facts_ = absl::StrFormat("%08x", storage::crc32c(facts.data(), facts.size()));
  if (samples() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the dataset has no samples: ", counted(files.size(), "file"),
                                                 " were searched",
                                                 files.empty() ? "" : absl::StrCat(", the first is ", files.front())));
}

absl::StatusOr<int64_t> SampleSet::count(size_t file) {
  const std::string& path = options_.files[file];
  if (options_.kind.encodings != nullptr) {
    const EncodingsManifest::Shard* shard = options_.kind.encodings->find(path);
    if (shard != nullptr) return shard->samples;
  }
  if (has_index(path, options_.kind)) {
    TITAN_ASSIGN_OR_RETURN(const std::string facts, facts_of(path, options_.kind));
    if (const std::optional<int64_t> known = store_.count(facts)) return *known;
  }
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<SampleFile> opened, get(file));
  return opened->samples();
}

// Files are opened outside of the lock: two threads may open the same file, and the second result is dropped.
absl::StatusOr<std::shared_ptr<SampleFile>> SampleSet::get(size_t file) {
  const auto find = [this, file]() TITAN_REQUIRES(mutex_) {
    const auto there =
        std::find_if(open_.begin(), open_.end(), [file](const auto& entry) { return entry.first == file; });
    if (there != open_.end()) open_.splice(open_.begin(), open_, there);
    return there != open_.end();
  };
  {
    sync::Lock lock(mutex_);
    if (find()) return open_.front().second;
  }
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<SampleFile> opened,
                         SampleFile::open(options_.files[file], options_.kind, store_));
  sync::Lock lock(mutex_);
  if (find()) return open_.front().second;
  if (!warned_[file] && !opened->warning().empty()) {
    warned_[file] = true;
    warnings_.push_back(opened->warning());
  }
  open_.emplace_front(file, opened);
  if (open_.size() > options_.open_files) open_.pop_back();
  return opened;
}

absl::StatusOr<SampleSet::Found> SampleSet::find(int64_t sample) {
  const auto following = std::upper_bound(firsts_.begin(), firsts_.end() - 1, sample);  // Files may be empty.
  const auto file = static_cast<size_t>(following - firsts_.begin() - 1);
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<SampleFile> opened, get(file));
  Found found{.path = options_.files[file], .file = std::move(opened), .number = sample - firsts_[file]};
  if (found.number >= found.file->samples()) {
    found.problem = absl::StrCat("the file has ", counted(found.file->samples(), "sample"),
                                 " and had more when the job began: the dataset has changed");
  }
  return found;
}

absl::StatusOr<Sample> SampleSet::read(int64_t sample) {
  TITAN_ASSIGN_OR_RETURN(const Found found, find(sample));
  if (found.problem.empty()) return found.file->read(found.number);
  return Sample{.name = absl::StrCat(found.path, ": sample ", found.number), .problem = found.problem};
}

absl::StatusOr<std::string> SampleSet::image_start(int64_t sample, int64_t bytes) {
  TITAN_ASSIGN_OR_RETURN(const Found found, find(sample));
  return found.problem.empty() ? found.file->image_start(found.number, bytes) : absl::StatusOr<std::string>("");
}

std::vector<std::string> SampleSet::take_warnings() {
  sync::Lock lock(mutex_);
  return std::exchange(warnings_, {});
}

void SampleSet::stop() {
  if (options_.kind.remote != nullptr) options_.kind.remote->stop();
}

}  // namespace titan::data
