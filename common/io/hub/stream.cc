#include "common/io/hub/stream.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest/digest.h"
#include "common/base/status/status.h"
#include "common/io/hub/api.h"
#include "common/io/hub/names.h"
#include "common/io/hub/verification.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"

namespace titan::hub {
namespace {

constexpr int kStripes = 64;  // Lock files for chunks that are being fetched: few, but two chunks rarely share one.
constexpr absl::Duration kLookForStop = absl::Milliseconds(200);
constexpr char kLockPrefix[] = "lock-";
constexpr size_t kTrailer = sizeof(int64_t) + sizeof(uint32_t);  // Size of the whole file, and CRC-32C of all before.

using Lock = std::unique_ptr<storage::FileLock>;

absl::StatusOr<Lock> lock_named(const Folder& folder, const std::string& name, const std::stop_token& stop) {
  const std::string path = absl::StrCat(folder.path(), "/", kLockPrefix, name);
  while (!stop.stop_requested()) {
    auto held = storage::posix_files().lock(path, storage::LockMode::kExclusive, kLookForStop);
    if (!absl::IsUnavailable(held.status())) return held;
  }
  return absl::CancelledError("interrupted");
}

std::string sealed(const Chunk& chunk) {
  std::string out = chunk.bytes;
  out.append(reinterpret_cast<const char*>(&chunk.file_size), sizeof chunk.file_size);
  const uint32_t crc = storage::crc32c(out.data(), out.size());
  out.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  return out;
}

std::optional<Chunk> unsealed(std::string text) {
  if (text.size() < kTrailer) return std::nullopt;
  uint32_t crc = 0;
  const size_t sealed_size = text.size() - sizeof crc;
  std::memcpy(&crc, text.data() + sealed_size, sizeof crc);
  if (storage::crc32c(text.data(), sealed_size) != crc) return std::nullopt;
  Chunk chunk;
  std::memcpy(&chunk.file_size, text.data() + text.size() - kTrailer, sizeof chunk.file_size);
  text.resize(text.size() - kTrailer);
  chunk.bytes = std::move(text);
  return chunk;
}

struct Kept {
  std::string name;
  int64_t size = 0;
  timespec used = {};
};

bool used_before(const Kept& a, const Kept& b) {
  return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkCache>> ChunkCache::open(const std::string& path, int64_t limit) {
  const bool missing = !storage::posix_files().is_folder(path);
  TITAN_ASSIGN_OR_RETURN(Folder folder, Folder::make(path));
  // The cache may hold private files of the hub.
  if (missing && chmod(path.c_str(), 0700) != 0) return errno_status(errno, absl::StrCat("chmod ", path));
  return std::unique_ptr<ChunkCache>(new ChunkCache(std::move(folder), limit));
}

absl::StatusOr<Chunk> ChunkCache::get(const std::string& name, const std::function<absl::StatusOr<Chunk>()>& fetch,
                                      const std::stop_token& stop) {
  const std::string key = digest::sha256_hex(name);
  if (std::optional<Chunk> found = find(key)) return *std::move(found);
  const int stripe = std::stoi(key.substr(0, 4), nullptr, 16) % kStripes;
  const absl::StatusOr<Lock> held = lock_named(folder_, absl::StrCat(stripe), stop);
  if (absl::IsCancelled(held.status())) return held.status();
  if (std::optional<Chunk> found = find(key)) return *std::move(found);  // The previous holder of the lock fetched it.
  absl::StatusOr<Chunk> chunk = fetch();
  if (chunk.ok()) static_cast<void>(keep(key, *chunk, stop));
  return chunk;
}

std::optional<Chunk> ChunkCache::find(const std::string& key) const {
  absl::StatusOr<std::string> text = folder_.read(key);
  if (!text.ok()) return std::nullopt;
  std::optional<Chunk> chunk = unsealed(*std::move(text));
  if (!chunk) {
    static_cast<void>(folder_.remove(key));
    return std::nullopt;
  }
  if (const absl::StatusOr<host::Descriptor> file = folder_.open(key, O_RDONLY); file.ok())
    futimens(file->get(), nullptr);
  return chunk;
}

// Only one process at a time evicts and stores, so that the limit is never exceeded.
absl::Status ChunkCache::keep(const std::string& key, const Chunk& chunk, const std::stop_token& stop) const {
  const std::string text = sealed(chunk);
  const auto size = static_cast<int64_t>(text.size());
  if (size > limit_) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const Lock held, lock_named(folder_, "room", stop));
  TITAN_RETURN_IF_ERROR(evict(size));
  absl::Status kept = folder_.write(key, text);
  if (!kept.ok()) static_cast<void>(folder_.remove(key + ".new"));  // After a full disk, frees the space at once.
  return kept;
}

absl::Status ChunkCache::evict(int64_t bytes) const {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage::posix_files().list(folder_.path()));
  std::vector<Kept> all;
  int64_t sum = bytes;
  for (const std::string& name : names) {
    const auto about = folder_.find(name);
    if (absl::StartsWith(name, kLockPrefix) || !about.ok() || !about->has_value()) continue;
    all.push_back({name, (*about)->st_size, (*about)->st_mtim});
    sum += (*about)->st_size;
  }
  std::sort(all.begin(), all.end(), used_before);
  for (const Kept& oldest : all) {
    if (sum <= limit_) break;
    TITAN_RETURN_IF_ERROR(folder_.remove(oldest.name));
    sum -= oldest.size;
  }
  return absl::OkStatus();
}

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
    const http::ByteRange range{index * options_.chunk_bytes, (index + 1) * options_.chunk_bytes};
    const HubClient::Receiver receiver{[&](const FileFacts& facts) { return accept(facts, chunk); },
                                       [&](int64_t, std::string_view bytes) {
                                         chunk.bytes += bytes;
                                         return absl::OkStatus();
                                       }};
    const absl::Status got = client_.read(repo_, commit_, file_, range, RangeEnd::kOpen, receiver, stop_);
    if (!got.ok() && !absl::IsOutOfRange(got)) return got;
    const auto size = static_cast<int64_t>(chunk.bytes.size());
    if (chunk.file_size < 0 && size < options_.chunk_bytes && got.ok()) chunk.file_size = range.begin + size;
    return chunk;
  }

  // All chunks must come from one file: its ETag and size must not change.
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
  int64_t file_size_ = -1;  // -1 until it is known.
  std::optional<std::string> etag_;
  int64_t index_ = -1;  // Index of `chunk_`.
  Chunk chunk_;
  const std::unique_ptr<ChunkCache> cache_;
  const std::stop_token stop_;
  HubClient client_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> open_stream(const StreamOptions& options, const Repo& repo,
                                                    const std::string& file, const std::string& revision,
                                                    int64_t offset, const std::stop_token& stop) {
  TITAN_RETURN_IF_ERROR(check_file_name(file));
  std::string commit = revision;
  if (!is_commit(revision)) {
    TITAN_ASSIGN_OR_RETURN(commit, HubClient(options.settings, options.retry).resolve(repo, revision, stop));
  }
  std::unique_ptr<ChunkCache> cache;
  if (!options.cache_folder.empty()) {
    TITAN_ASSIGN_OR_RETURN(cache, ChunkCache::open(options.cache_folder, options.cache_bytes));
  }
  return std::make_unique<ChunkedStream>(options, repo, file, std::move(commit), std::max<int64_t>(0, offset),
                                         std::move(cache), stop);
}

}  // namespace titan::hub
