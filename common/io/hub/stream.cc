#include "common/io/hub/stream.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/hub/chunk_cache.h"
#include "common/io/hub/names.h"
#include "common/io/hub/urls.h"

namespace titan::hub {
namespace {

class ChunkedStream : public Stream {
 public:
  ChunkedStream(const StreamOptions& options, Repo repo, std::string file, std::string commit, int64_t offset,
                std::unique_ptr<ChunkCache> cache, std::stop_token stop)
      : options_(options),
        repo_(std::move(repo)),
        file_(std::move(file)),
        commit_(std::move(commit)),
        at_(offset),
        cache_(std::move(cache)),
        stop_(std::move(stop)),
        client_(options.settings, options.retry) {}

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    if (size == 0 || (file_size_ >= 0 && at_ >= file_size_)) return 0;
    const int64_t index = at_ / options_.chunk_bytes;
    if (index != index_) TITAN_RETURN_IF_ERROR(load(index));
    const auto skip = static_cast<size_t>(at_ - index * options_.chunk_bytes);
    if (skip >= chunk_.bytes.size()) return 0;
    const size_t take = std::min(size, chunk_.bytes.size() - skip);
    std::memcpy(buffer, chunk_.bytes.data() + skip, take);
    at_ += static_cast<int64_t>(take);
    return take;
  }

 private:
  absl::Status load(int64_t index) {
    const auto fetch = [this, index] { return fetch_chunk(index); };
    absl::StatusOr<Chunk> chunk = cache_ ? cache_->get(name_of(index), fetch, stop_) : fetch();
    TITAN_RETURN_IF_ERROR(chunk.status());
    chunk_ = *std::move(chunk);
    index_ = index;
    if (chunk_.file_size >= 0) file_size_ = chunk_.file_size;
    return absl::OkStatus();
  }

  std::string name_of(int64_t index) const {
    return absl::StrCat(file_url(options_.settings.endpoint, repo_, commit_, file_), "#", options_.chunk_bytes, "/",
                        index);
  }

  absl::StatusOr<Chunk> fetch_chunk(int64_t index) {
    Chunk chunk;
    const http::Range range{index * options_.chunk_bytes, (index + 1) * options_.chunk_bytes};
    const Client::Taker taker{[&](const FileFacts& facts) { return accept(facts, chunk); },
                              [&](int64_t, std::string_view bytes) {
                                chunk.bytes += bytes;
                                return absl::OkStatus();
                              }};
    const absl::Status got = client_.read(repo_, commit_, file_, range, RangeEnd::kOpen, taker, stop_);
    if (!got.ok() && !absl::IsOutOfRange(got)) return got;
    const auto size = static_cast<int64_t>(chunk.bytes.size());
    if (chunk.file_size < 0 && size < options_.chunk_bytes && got.ok()) chunk.file_size = range.begin + size;
    return chunk;
  }

  // Chunks belong to one file only while the server calls it the same.
  absl::Status accept(const FileFacts& facts, Chunk& chunk) {
    chunk.file_size = facts.size;
    const bool same =
        (!etag_ || *etag_ == facts.etag) && (file_size_ < 0 || facts.size < 0 || facts.size == file_size_);
    if (!etag_) etag_ = facts.etag;
    return same ? absl::OkStatus()
                : absl::AbortedError("the server's file has changed while it was read (ETag or size)");
  }

  const StreamOptions options_;
  const Repo repo_;
  const std::string file_, commit_;
  int64_t at_;
  int64_t file_size_ = -1;  // Once it is known.
  std::optional<std::string> etag_;
  int64_t index_ = -1;  // Of `chunk_`.
  Chunk chunk_;
  const std::unique_ptr<ChunkCache> cache_;
  const std::stop_token stop_;
  Client client_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> open_stream(const StreamOptions& options, const Repo& repo,
                                                    const std::string& file, const std::string& revision,
                                                    int64_t offset, const std::stop_token& stop) {
  TITAN_RETURN_IF_ERROR(check_file_name(file));
  std::string commit = revision;
  if (!is_commit(revision)) {
    TITAN_ASSIGN_OR_RETURN(commit, Client(options.settings, options.retry).resolve(repo, revision, stop));
  }
  std::unique_ptr<ChunkCache> cache;
  if (!options.cache_folder.empty()) {
    TITAN_ASSIGN_OR_RETURN(cache, ChunkCache::open(options.cache_folder, options.cache_bytes));
  }
  return std::make_unique<ChunkedStream>(options, repo, file, std::move(commit), std::max<int64_t>(0, offset),
                                         std::move(cache), stop);
}

}  // namespace titan::hub
