#include "worker/rank/data/rows/mixed_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {
namespace {

using Wide = __int128;  // For products of rows and weights.

}  // namespace

SourceMix::SourceMix(std::vector<WeightsFrom> schedule) : schedule_(std::move(schedule)) {
  const size_t sources = schedule_.front().weights.size();
  place_.weights.resize(sources);
  place_.dealt.resize(sources);
  place_.ended.resize(sources);
}

// When the weights differ from those of the newest rows, shares are counted from zero: no source has to catch up on
// rows that its earlier weight did not promise.
void SourceMix::settle_weights() {
  const auto following = std::upper_bound(schedule_.begin() + 1, schedule_.end(), place_.row,
                                          [](int64_t row, const WeightsFrom& weights) { return row < weights.row; });
  wanted_ = (following - 1)->weights;
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (place_.ended[i]) wanted_[i] = 0;
  }
  if (wanted_ == place_.weights) return;
  place_.weights = wanted_;
  std::fill(place_.dealt.begin(), place_.dealt.end(), 0);
}

std::optional<size_t> SourceMix::source() {
  settle_weights();
  const std::vector<int64_t>&weights = place_.weights, &dealt = place_.dealt;
  const Wide all = std::accumulate(weights.begin(), weights.end(), Wide{0});
  const Wide next = std::accumulate(dealt.begin(), dealt.end(), Wide{1});
  std::optional<size_t> first;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool begun = Wide{dealt[i]} * all < next * weights[i];
    if (!begun) continue;
    // Its row is due by (dealt + 1) / share.
    if (!first || (Wide{dealt[i]} + 1) * weights[*first] < (Wide{dealt[*first]} + 1) * weights[i]) first = i;
  }
  return first;
}

void SourceMix::deal(size_t source) {
  ++place_.dealt[source];
  ++place_.row;
}

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
  if (sources_.size() == 1 && sources_[0].name.empty()) {  // A single source can skip many rows at once.
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
  // A source that had ended starts again if it repeats now, so all positions are read again.
  for (size_t i = 0; i < sources_.size(); ++i) moved_[i] = true;
  return absl::OkStatus();
}

}  // namespace titan::data
