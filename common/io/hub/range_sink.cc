#include "common/io/hub/range_sink.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/shown.h"
#include "common/io/http/content_range.h"
#include "common/io/hub/names.h"

namespace titan::hub {

absl::Status RangeSink::begin(const http::Answer& answer) {
  if (!answer.commit.empty() && answer.commit != commit_)
    return absl::UnavailableError(
        absl::StrCat("the server answers with commit ", text::shown(answer.commit), " instead of ", commit_));
  if (answer.code != 206) return begin_whole(answer);
  const std::optional<http::ContentRange> range = http::parse_content_range(answer.content_range);
  const bool as_asked =
      range && range->range.begin == asked_.begin && range->range.end == std::min(asked_.end, range->size);
  if (!as_asked)
    return absl::UnavailableError(absl::StrCat("the server sends '", text::shown(answer.content_range),
                                               "' instead of bytes ", asked_.begin, " to ", asked_.end));
  at_ = asked_.begin;
  asked_.end = range->range.end;
  return taker_.facts({answer.etag, range->size});
}

absl::Status RangeSink::begin_whole(const http::Answer& answer) {
  whole_ = true;
  return taker_.facts({answer.etag, -1});
}

absl::Status RangeSink::take(std::string_view bytes) {
  const int64_t from = at_;
  at_ += static_cast<int64_t>(bytes.size());
  if (at_ > asked_.end && !whole_) return absl::UnavailableError("the server sends more than was asked for");
  if (from < asked_.begin) bytes.remove_prefix(std::min<size_t>(bytes.size(), asked_.begin - from));
  const int64_t first = std::max(from, asked_.begin);
  if (first < asked_.end && !bytes.empty()) {
    bytes = bytes.substr(0, asked_.end - first);
    TITAN_RETURN_IF_ERROR(taker_.bytes(first, bytes));
    reached_ = first + static_cast<int64_t>(bytes.size());
  }
  enough_ = whole_ && at_ > asked_.end;
  return enough_ ? absl::OutOfRangeError("enough") : absl::OkStatus();
}

absl::Status RangeSink::end(const absl::Status& transfer) const {
  if (enough_ || reached_ == asked_.end) return absl::OkStatus();  // However the connection ended.
  TITAN_RETURN_IF_ERROR(transfer);
  if (whole_ && end_ == RangeEnd::kOpen) return absl::OkStatus();
  return absl::UnavailableError("the server's answer ends too soon");
}

}  // namespace titan::hub
