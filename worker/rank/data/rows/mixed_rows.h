#pragma once

// Mixes the rows of several sources into one stream by their weights.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/documents/row_source.h"

namespace titan::data {

// Integer weights of the sources, which apply from row `row` of the stream.
struct WeightsFrom {
  int64_t row = 0;
  std::vector<int64_t> weights;
};

// Decides which source each row of a stream comes from. After n rows dealt with the same weights, every source has
// given its share of n, rounded up or down. A row is a unit of time on one processor, and sources are tasks that get
// their share of it at every moment (Baruah et al., "Proportionate progress", 1996). On one processor it suffices to
// choose, among tasks whose next unit has begun, the one whose unit ends first. Uses only integers, so that all ranks
// deal alike.
class SourceMix {
 public:
  // State of the dealing.
  struct Place {
    int64_t row = 0;               // Rows dealt so far.
    std::vector<int64_t> weights;  // Weights of the newest rows; 0 for a source that has ended.
    std::vector<int64_t> dealt;    // Rows of each source dealt with these weights.
    std::vector<bool> ended;

    bool operator==(const Place&) const = default;
  };

  // `schedule` is in the order of its rows, starts at row 0, and has a weight per source in each entry.
  explicit SourceMix(std::vector<WeightsFrom> schedule);

  // Returns the source of the next row; nothing if all sources with a weight have ended.
  std::optional<size_t> source();
  // Records that the row was taken from `source`.
  void deal(size_t source);
  // Records that `source` has no more rows: the others take over its share.
  void end(size_t source) { place_.ended[source] = true; }

  const Place& place() const { return place_; }
  // Resumes at a place with the same number of sources. Its weights may differ from the schedule's.
  void seek(Place place) { place_ = std::move(place); }

 private:
  void settle_weights();

  std::vector<WeightsFrom> schedule_;
  std::vector<int64_t> wanted_;
  Place place_;
};

// A place in a stream of several sources.
struct MixCursor {
  std::vector<StreamPosition> sources;
  std::vector<int64_t> rows;  // Rows that each source has given.
  SourceMix::Place mix;
};

// One source of a stream.
struct MixSource {
  std::string name;
  bool repeat = true;
  std::unique_ptr<RowSource> rows;
  std::vector<std::string> files;  // Files that its positions number.
};

// Rows of one source, or of several by their weights. A source that does not repeat gives each of its whole rows once;
// then the others take over its share. The stream ends with the last source that has a weight.
class MixedRows {
 public:
  // `schedule`: see SourceMix. Errors: those of the sources.
  static absl::StatusOr<MixedRows> open(std::vector<MixSource> sources, std::vector<WeightsFrom> schedule);

  // These work like RowSource's; errors name the source.
  absl::StatusOr<const int32_t*> next();
  absl::Span<const int64_t> piece_ends() const { return sources_[newest_].rows->piece_ends(); }
  bool has_pieces() const;  // Whether any source's rows have pieces.
  absl::StatusOr<int64_t> skip(int64_t rows);
  int64_t padding() const;
  std::vector<std::string> take_warnings();

  // Return the position of the next row, and that of the first row.
  absl::StatusOr<const MixCursor*> cursor();
  const MixCursor& start() const { return start_; }
  absl::Status seek(const MixCursor& cursor);

  const std::vector<MixSource>& sources() const { return sources_; }

 private:
  MixedRows(std::vector<MixSource> sources, std::vector<WeightsFrom> schedule)
      : sources_(std::move(sources)), mix_(std::move(schedule)), moved_(sources_.size(), true) {}
  void count(size_t source, int64_t rows);
  absl::Status named(const absl::Status& status, size_t source) const;

  std::vector<MixSource> sources_;
  SourceMix mix_;
  size_t newest_ = 0;        // The source of the row that next() returned last.
  std::vector<bool> moved_;  // Sources whose positions in cursor_ are out of date.
  MixCursor cursor_, start_;
};

}  // namespace titan::data
