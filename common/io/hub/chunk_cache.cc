#include "common/io/hub/chunk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest/digest.h"
#include "common/base/status/status.h"
#include "common/io/hub/checks.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"

namespace titan::hub {
namespace {

constexpr int kStripes = 64;  // Locks for chunks that are being fetched: few files, and rarely two chunks with one.
constexpr absl::Duration kLookForStop = absl::Milliseconds(200);
constexpr char kLockPrefix[] = "lock-";
constexpr size_t kTrailer = sizeof(int64_t) + sizeof(uint32_t);  // Length of the file, CRC-32C of all before.

using Lock = std::unique_ptr<storage::FileLock>;

absl::StatusOr<Lock> lock(const Folder& folder, const std::string& name, const std::stop_token& stop) {
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
  // Of what is private on the hub, too.
  if (missing && chmod(path.c_str(), 0700) != 0) return errno_status(errno, absl::StrCat("chmod ", path));
  return std::unique_ptr<ChunkCache>(new ChunkCache(std::move(folder), limit));
}

absl::StatusOr<Chunk> ChunkCache::get(const std::string& name, const std::function<absl::StatusOr<Chunk>()>& fetch,
                                      const std::stop_token& stop) {
  const std::string key = digest::sha256_hex(name);
  if (std::optional<Chunk> found = find(key)) return *std::move(found);
  const int stripe = std::stoi(key.substr(0, 4), nullptr, 16) % kStripes;
  const absl::StatusOr<Lock> held = lock(folder_, absl::StrCat(stripe), stop);
  if (absl::IsCancelled(held.status())) return held.status();
  if (std::optional<Chunk> found = find(key)) return *std::move(found);  // Who had the lock has fetched it.
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

// Room is made and taken by one process at a time, so that there is never more than the limit.
absl::Status ChunkCache::keep(const std::string& key, const Chunk& chunk, const std::stop_token& stop) const {
  const std::string text = sealed(chunk);
  const auto size = static_cast<int64_t>(text.size());
  if (size > limit_) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const Lock held, lock(folder_, "room", stop));
  TITAN_RETURN_IF_ERROR(make_room(size));
  absl::Status kept = folder_.write(key, text);
  if (!kept.ok()) static_cast<void>(folder_.remove(key + ".new"));  // A full disk: what came of it goes at once.
  return kept;
}

absl::Status ChunkCache::make_room(int64_t bytes) const {
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

}  // namespace titan::hub
