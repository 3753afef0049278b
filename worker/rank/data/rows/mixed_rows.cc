#include "worker/rank/data/rows/mixed_rows.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {

absl::StatusOr<MixedRows> MixedRows::open(std::vector<MixSource> sources, std::vector<WeightsFrom> schedule) {
  MixedRows mixed(std::move(sources), std::move(schedule));
  mixed.cursor_.sources.resize(mixed.sources_.size());
  mixed.cursor_.rows.resize(mixed.sources_.size());
  TITAN_ASSIGN_OR_RETURN(const MixCursor* start, mixed.cursor());
  mixed.start_ = *start;
  return mixed;
}

absl::Status MixedRows::named(const absl::Status& status, size_t source) const {
  const std::string& name = sources_[source].name;
  return name.empty() ? status : annotate(status, absl::StrCat("source \"", name, "\""));
}

void MixedRows::count(size_t source, int64_t rows) {
  cursor_.rows[source] += rows;
  moved_[source] = true;
}

absl::StatusOr<const int32_t*> MixedRows::next() {
  while (const std::optional<size_t> source = mix_.source()) {
    const absl::StatusOr<const int32_t*> row = sources_[*source].rows->next();
    if (!row.ok()) return named(row.status(), *source);
    if (*row == nullptr) {
      mix_.end(*source);
      continue;
    }
    mix_.deal(*source);
    count(*source, 1);
    newest_ = *source;
    return *row;
  }
  return nullptr;
}

absl::StatusOr<int64_t> MixedRows::skip(int64_t rows) {
  if (sources_.size() == 1 && sources_[0].name.empty()) {  // What a source knows to skip at once.
    TITAN_ASSIGN_OR_RETURN(const int64_t skipped, sources_[0].rows->skip(rows));
    count(0, skipped);
    return skipped;
  }
  int64_t skipped = 0;
  while (skipped < rows) {
    const std::optional<size_t> source = mix_.source();
    if (!source) break;
    const absl::StatusOr<int64_t> one = sources_[*source].rows->skip(1);
    if (!one.ok()) return named(one.status(), *source);
    if (*one == 0) {
      mix_.end(*source);
      continue;
    }
    mix_.deal(*source);
    count(*source, 1);
    ++skipped;
  }
  return skipped;
}

bool MixedRows::has_pieces() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const MixSource& source) { return source.rows->has_pieces(); });
}

int64_t MixedRows::padding() const {
  int64_t all = 0;
  for (const MixSource& source : sources_) all += source.rows->padding();
  return all;
}

std::vector<std::string> MixedRows::take_warnings() {
  std::vector<std::string> all;
  for (const MixSource& source : sources_) {
    for (std::string& warning : source.rows->take_warnings()) {
      all.push_back(source.name.empty() ? std::move(warning) : absl::StrCat("source \"", source.name, "\": ", warning));
    }
  }
  return all;
}

absl::StatusOr<const MixCursor*> MixedRows::cursor() {
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (!moved_[i]) continue;
    absl::StatusOr<StreamPosition> position = sources_[i].rows->position();
    if (!position.ok()) return named(position.status(), i);
    cursor_.sources[i] = *position;
    moved_[i] = false;
  }
  cursor_.mix = mix_.place();
  return &cursor_;
}

absl::Status MixedRows::seek(const MixCursor& cursor) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    TITAN_RETURN_IF_ERROR(named(sources_[i].rows->seek(cursor.sources[i]), i));
  }
  cursor_ = cursor;
  mix_.seek(cursor.mix);
  // A source may begin again that has ended before it was told to.
  for (size_t i = 0; i < sources_.size(); ++i) moved_[i] = true;
  return absl::OkStatus();
}

}  // namespace titan::data
