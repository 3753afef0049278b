#include "worker/rank/data/samples/sample_index.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"

namespace titan::data {
namespace {

// The file holds this header, the extents, and the warning.
struct IndexHeader {
  std::array<char, 8> magic = {'T', 'I', 'T', 'A', 'N', 'S', 'I', 'X'};
  int64_t samples = 0, warning_bytes = 0;
  uint32_t version = 1;
  uint32_t content_sum = 0;  // CRC-32C of everything after the header.
  uint32_t unused = 0;
  uint32_t sum = 0;  // CRC-32C of the fields before it.
};
static_assert(sizeof(IndexHeader) == 40 && sizeof(SampleExtent) == 16);

uint32_t sum_of(const IndexHeader& header) { return storage::crc32c(&header, offsetof(IndexHeader, sum)); }

// Returns the header of an index of `size` bytes, or nothing if it is damaged.
std::optional<IndexHeader> header_of(const char* bytes, int64_t size) {
  IndexHeader header;
  if (size < static_cast<int64_t>(sizeof header)) return std::nullopt;
  std::memcpy(static_cast<void*>(&header), bytes, sizeof header);
  const bool right = header.magic == IndexHeader().magic && header.version == 1 && header.sum == sum_of(header);
  const int64_t left = size - static_cast<int64_t>(sizeof header);
  if (!right || header.samples < 0 || header.samples > left / 16 ||
      header.warning_bytes != left - header.samples * 16) {
    return std::nullopt;
  }
  return header;
}

}  // namespace

std::string SampleIndex::to_bytes() const {
  const std::string_view extents(reinterpret_cast<const char*>(samples.data()), samples.size() * sizeof(SampleExtent));
  IndexHeader header{.samples = static_cast<int64_t>(samples.size()),
                     .warning_bytes = static_cast<int64_t>(warning.size())};
  header.content_sum = storage::crc32c(warning.data(), warning.size(), storage::crc32c(extents.data(), extents.size()));
  header.sum = sum_of(header);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(extents).append(warning);
  return bytes;
}

absl::StatusOr<SampleIndex> SampleIndex::from_bytes(std::string_view bytes) {
  const std::optional<IndexHeader> header = header_of(bytes.data(), static_cast<int64_t>(bytes.size()));
  if (header.has_value()) bytes.remove_prefix(sizeof(IndexHeader));
  if (!header.has_value() || storage::crc32c(bytes.data(), bytes.size()) != header->content_sum) {
    return absl::DataLossError("the index of samples is damaged (checksum or size)");
  }
  SampleIndex index;
  index.samples.resize(static_cast<size_t>(header->samples));
  std::memcpy(static_cast<void*>(index.samples.data()), bytes.data(), index.samples.size() * sizeof(SampleExtent));
  index.warning = bytes.substr(index.samples.size() * sizeof(SampleExtent));
  return index;
}

std::string IndexStore::path_of(const std::string& facts) const {
  return storage::join_path(folder_, absl::StrCat("samples-", facts, ".bin"));
}

absl::StatusOr<std::shared_ptr<const SampleIndex>> IndexStore::get(const std::string& facts, Scan scan) {
  {
    sync::Lock lock(mutex_);
    if (const auto found = not_stored_.find(facts); found != not_stored_.end()) return found->second;
  }
  storage::Files& disk = storage::posix_files();
  const std::string path = path_of(facts);
  if (!folder_.empty()) {
    if (const absl::StatusOr<std::string> bytes = storage::read_file(disk, path); bytes.ok()) {
      if (absl::StatusOr<SampleIndex> index = SampleIndex::from_bytes(*bytes); index.ok()) {
        return std::make_shared<const SampleIndex>(*std::move(index));
      }
    }
  }
  TITAN_ASSIGN_OR_RETURN(SampleIndex made, scan());
  auto index = std::make_shared<const SampleIndex>(std::move(made));
  const bool stored =
      !folder_.empty() && disk.make_folders(folder_).ok() && storage::atomic_write(disk, path, index->to_bytes()).ok();
  if (stored) return index;
  sync::Lock lock(mutex_);
  return not_stored_.emplace(facts, std::move(index)).first->second;
}

std::optional<int64_t> IndexStore::count(const std::string& facts) const {
  {
    sync::Lock lock(mutex_);
    if (const auto found = not_stored_.find(facts); found != not_stored_.end()) {
      return static_cast<int64_t>(found->second->samples.size());
    }
  }
  if (folder_.empty()) return std::nullopt;
  const absl::StatusOr<std::unique_ptr<storage::ReadableFile>> file = storage::posix_files().open(path_of(facts));
  std::array<char, sizeof(IndexHeader)> bytes;
  if (!file.ok() || !(*file)->read(0, sizeof(IndexHeader), bytes.data()).ok()) return std::nullopt;
  const std::optional<IndexHeader> header = header_of(bytes.data(), (*file)->size());
  return header.has_value() ? std::optional<int64_t>(header->samples) : std::nullopt;
}

}  // namespace titan::data
