#include "common/io/hub/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"
#include "common/io/http/ranges.h"
#include "common/io/hub/api.h"
#include "common/io/hub/names.h"

namespace titan::hub {
namespace {

constexpr size_t kMaxAnswerLength = size_t{64} << 20;
constexpr int kMaxPages = 10000;

class TextSink : public http::Sink {
 public:
  absl::Status begin(const http::Answer& answer) override {
    link = answer.link;
    return absl::OkStatus();
  }
  absl::Status take(std::string_view bytes) override {
    if (text.size() + bytes.size() > kMaxAnswerLength) return absl::DataLossError("the answer is longer than 64 MiB");
    text += bytes;
    return absl::OkStatus();
  }
  std::string text, link;
};

std::string of(const Repo& repo) { return repo.kind == RepoKind::kModel ? repo.id : "dataset " + repo.id; }

}  // namespace

absl::StatusOr<std::string> HubClient::text(const std::string& url, std::string& link, const std::stop_token& stop) {
  std::string text;
  const absl::Status got = http::with_retries(
      retry_, stop,
      [&] {
        TextSink sink;
        http::Outcome outcome = http_.get(url, std::nullopt, sink, stop);
        text = std::move(sink.text), link = std::move(sink.link);
        return outcome;
      },
      [] { return 0; });
  if (!got.ok()) return got;
  return text;
}

absl::StatusOr<std::string> HubClient::resolve(const Repo& repo, const std::string& revision,
                                               const std::stop_token& stop) {
  TITAN_RETURN_IF_ERROR(check_revision(revision));
  const std::string what = absl::StrCat(of(repo), " at ", text::printable_name(revision));
  std::string link;
  absl::StatusOr<std::string> info = text(info_url(settings_.endpoint, repo, revision), link, stop);
  if (!info.ok()) return annotate(info.status(), what);
  absl::StatusOr<std::string> commit = parse_info(*info);
  if (!commit.ok()) return annotate(commit.status(), what);
  return commit;
}

absl::StatusOr<std::vector<RemoteFile>> HubClient::list(const Repo& repo, const std::string& commit,
                                                        const std::stop_token& stop, const std::string& folder) {
  std::vector<RemoteFile> files;
  std::string cursor;
  for (int page = 0; page < kMaxPages; ++page) {
    std::string link;
    absl::StatusOr<std::string> tree = text(tree_url(settings_.endpoint, repo, commit, cursor, folder), link, stop);
    if (!tree.ok()) return annotate(tree.status(), absl::StrCat("files of ", of(repo)));
    absl::StatusOr<std::vector<RemoteFile>> more = parse_tree(*tree);
    if (!more.ok()) return annotate(more.status(), absl::StrCat("files of ", of(repo)));
    files.insert(files.end(), more->begin(), more->end());
    // Only the cursor of the next page's address is used: with a mirror, the address would name another server.
    if ((cursor = next_cursor(link)).empty()) return files;
  }
  return absl::DataLossError(absl::StrCat("files of ", of(repo), ": the list has more than 10000 pages"));
}

absl::Status HubClient::read(const Repo& repo, const std::string& commit, const std::string& file,
                             http::ByteRange range, RangeEnd end, const Receiver& receiver,
                             const std::stop_token& stop) {
  const std::string url = file_url(settings_.endpoint, repo, commit, file);
  const absl::Status got = http::with_retries(
      retry_, stop,
      [&] {
        RangeSink sink(range, end, commit, receiver);
        http::Outcome outcome = http_.get(url, range, sink, stop);
        outcome.status = sink.end(outcome.status);
        range.begin = sink.reached();
        return outcome;
      },
      [&range] { return range.begin; });
  return got.ok() ? got : annotate(got, absl::StrCat(text::printable_name(file), " of ", of(repo)));
}

absl::Status RangeSink::begin(const http::Answer& answer) {
  if (!answer.commit.empty() && answer.commit != commit_)
    return absl::UnavailableError(
        absl::StrCat("the server answers with commit ", text::printable_name(answer.commit), " instead of ", commit_));
  if (answer.code != 206) return begin_whole(answer);
  const std::optional<http::ContentRange> range = http::parse_content_range(answer.content_range);
  const bool as_asked =
      range && range->range.begin == asked_.begin && range->range.end == std::min(asked_.end, range->size);
  if (!as_asked)
    return absl::UnavailableError(absl::StrCat("the server sends '", text::printable_name(answer.content_range),
                                               "' instead of bytes ", asked_.begin, " to ", asked_.end));
  at_ = asked_.begin;
  asked_.end = range->range.end;
  return receiver_.facts({answer.etag, range->size});
}

absl::Status RangeSink::begin_whole(const http::Answer& answer) {
  whole_ = true;
  return receiver_.facts({answer.etag, -1});
}

absl::Status RangeSink::take(std::string_view bytes) {
  const int64_t from = at_;
  at_ += static_cast<int64_t>(bytes.size());
  if (at_ > asked_.end && !whole_) return absl::UnavailableError("the server sends more bytes than requested");
  if (from < asked_.begin) bytes.remove_prefix(std::min<size_t>(bytes.size(), asked_.begin - from));
  const int64_t first = std::max(from, asked_.begin);
  if (first < asked_.end && !bytes.empty()) {
    bytes = bytes.substr(0, asked_.end - first);
    TITAN_RETURN_IF_ERROR(receiver_.bytes(first, bytes));
    reached_ = first + static_cast<int64_t>(bytes.size());
  }
  enough_ = whole_ && at_ > asked_.end;
  return enough_ ? absl::OutOfRangeError("enough") : absl::OkStatus();
}

absl::Status RangeSink::end(const absl::Status& transfer) const {
  if (enough_ || reached_ == asked_.end) return absl::OkStatus();  // Regardless of how the connection ended.
  TITAN_RETURN_IF_ERROR(transfer);
  if (whole_ && end_ == RangeEnd::kOpen) return absl::OkStatus();
  return absl::UnavailableError("the server's answer ends too early");
}

}  // namespace titan::hub
