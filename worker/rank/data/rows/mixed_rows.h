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

// The sources' weights from a row of the stream on, as whole numbers.
struct WeightsFrom {
  int64_t row = 0;
  std::vector<int64_t> weights;
};

// Which source each row of a stream comes from. Of n rows dealt by the same weights every source has given its share of
// n, rounded up or down: a row is a unit of time on one processor, and the sources are tasks that get their share of it
// at every moment (Baruah et al., "Proportionate progress", 1996; on one processor it is enough that of the tasks whose
// next unit has begun the one whose unit ends first goes on). Whole numbers alone, so that all ranks deal alike.
class SourceMix {
 public:
  struct Place {
    int64_t row = 0;               // Rows that were dealt.
    std::vector<int64_t> weights;  // By which the newest were, 0 of a source that has ended;
    std::vector<int64_t> dealt;    // and how many by these weights, of each source.
    std::vector<bool> ended;

    bool operator==(const Place&) const = default;
  };

  // `schedule` in the order of its rows, the first of row 0, with as many weights each.
  explicit SourceMix(std::vector<WeightsFrom> schedule);

  // The source of the next row; nothing: all that have a weight have ended.
  std::optional<size_t> source();
  // That row was taken from there.
  void deal(size_t source);
  // There is none: the others take its share over.
  void end(size_t source) { place_.ended[source] = true; }

  const Place& place() const { return place_; }
  // Resumes at a place with as many sources; the weights by which it was reached may have been others.
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
  std::vector<int64_t> rows;  // That each has given.
  SourceMix::Place mix;
};

// One source of a stream.
struct MixSource {
  std::string name;
  bool repeat = true;
  std::unique_ptr<RowSource> rows;
  std::vector<std::string> files;  // That its positions number.
};

// Rows of one source, or of several by their weights. A source that does not repeat gives its whole rows once; then the
// others take its share over, and the stream ends with the last source that has a weight.
class MixedRows {
 public:
  static absl::StatusOr<MixedRows> open(std::vector<MixSource> sources, std::vector<WeightsFrom> schedule);

  // As RowSource has them; errors name the source.
  absl::StatusOr<const int32_t*> next();
  absl::Span<const int64_t> piece_ends() const { return sources_[newest_].rows->piece_ends(); }
  bool has_pieces() const;  // Of some source.
  absl::StatusOr<int64_t> skip(int64_t rows);
  int64_t padding() const;
  std::vector<std::string> take_warnings();

  // Where the next row starts, and where the first did.
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
  size_t newest_ = 0;        // The source of the row that next() gave.
  std::vector<bool> moved_;  // Sources whose positions in cursor_ are old.
  MixCursor cursor_, start_;
};

}  // namespace titan::data
