#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/rows/source_mix.h"

namespace titan::data {

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
