#include "worker/rank/data/documents/document_places.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {
namespace {

constexpr int64_t kBlock = 4 * 1024;
constexpr size_t kFlushBytes = 1024 * 1024;  // A multiple of kBlock.
constexpr absl::Duration kMakeTimeout = absl::Hours(1);

struct Place {
  int64_t offset = 0, line = 0;
};
static_assert(sizeof(Place) == 16);

// The file holds the places, the number of each file's first document, the number of all documents, a CRC-32C per block
// of these, and this footer.
struct Footer {
  std::array<char, 8> magic = {'T', 'I', 'T', 'A', 'N', 'P', 'L', 'C'};
  int64_t files = 0, documents = 0;
  uint32_t version = 1;
  uint32_t sum = 0;  // CRC-32C of the fields before it.
};
static_assert(sizeof(Footer) == 32);

uint32_t footer_sum(const Footer& footer) { return storage::crc32c(&footer, offsetof(Footer, sum)); }

int64_t checked_bytes(const Footer& footer) {
  return footer.documents * static_cast<int64_t>(sizeof(Place)) + (footer.files + 1) * 8;
}

absl::Status damaged(const std::string& path) {
  return absl::DataLossError(absl::StrCat(path, ": damaged (checksum or size); remove it, it is made again"));
}

// Appends bytes and collects the CRC-32C of each block.
class BlockWriter {
 public:
  explicit BlockWriter(std::unique_ptr<storage::WritableFile> file) : file_(std::move(file)) {}

  template <typename T>
  absl::Status add(const T* values, size_t count) {
    buffer_.append(reinterpret_cast<const char*>(values), count * sizeof(T));
    return buffer_.size() >= kFlushBytes ? flush(buffer_.size() / kBlock * kBlock) : absl::OkStatus();
  }

  absl::Status finish(Footer footer) {
    TITAN_RETURN_IF_ERROR(flush(buffer_.size()));
    footer.sum = footer_sum(footer);
    TITAN_RETURN_IF_ERROR(
        file_->append({reinterpret_cast<const char*>(sums_.data()), sums_.size() * sizeof(sums_[0])}));
    TITAN_RETURN_IF_ERROR(file_->append({reinterpret_cast<const char*>(&footer), sizeof footer}));
    TITAN_RETURN_IF_ERROR(file_->sync());
    return file_->close();
  }

 private:
  absl::Status flush(size_t bytes) {
    for (size_t at = 0; at < bytes; at += kBlock) {
      sums_.push_back(storage::crc32c(buffer_.data() + at, std::min<size_t>(kBlock, bytes - at)));
    }
    TITAN_RETURN_IF_ERROR(file_->append(std::string_view(buffer_).substr(0, bytes)));
    buffer_.erase(0, bytes);
    return absl::OkStatus();
  }

  std::unique_ptr<storage::WritableFile> file_;
  std::string buffer_;
  std::vector<uint32_t> sums_;
};

absl::Status write_places(const std::vector<std::string>& files, const FileKind& kind, BlockWriter& writer) {
  std::vector<int64_t> firsts = {0};
  for (const std::string& file : files) {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> open, DocumentFile::open(file, kind, {}));
    int64_t documents = firsts.back();
    while (true) {
      TITAN_ASSIGN_OR_RETURN(const bool found, open->next());
      if (!found) break;
      const data_files::FilePlace start = open->start();
      const Place place{start.offset, start.line};
      TITAN_RETURN_IF_ERROR(writer.add(&place, 1));
      ++documents;
    }
    firsts.push_back(documents);
  }
  TITAN_RETURN_IF_ERROR(writer.add(firsts.data(), firsts.size()));
  return writer.finish({.files = static_cast<int64_t>(files.size()), .documents = firsts.back()});
}

// Writes to a temporary name first, so that the final name always holds a complete table.
absl::Status make_places(const std::vector<std::string>& files, const FileKind& kind, const std::string& path) {
  storage::Files& disk = storage::posix_files();
  const std::string temporary = absl::StrCat(path, ".new-", ::getpid());
  (void)disk.remove(temporary);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<storage::WritableFile> file, disk.create(temporary));
  BlockWriter writer(std::move(file));
  absl::Status made = write_places(files, kind, writer);
  if (made.ok()) made = disk.rename(temporary, path);
  if (!made.ok()) (void)disk.remove(temporary);
  return made;
}

}  // namespace

absl::StatusOr<DocumentPlaces> DocumentPlaces::open(const std::string& path, int64_t files) {
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<storage::ReadableFile> file, storage::posix_files().open(path));
  Footer footer;
  if (file->size() < static_cast<int64_t>(sizeof footer)) return damaged(path);
  TITAN_RETURN_IF_ERROR(
      file->read(file->size() - static_cast<int64_t>(sizeof footer), sizeof footer, reinterpret_cast<char*>(&footer)));
  const bool right = footer.magic == Footer().magic && footer.sum == footer_sum(footer) && footer.version == 1 &&
                     footer.files == files && footer.documents >= 0 &&
                     footer.documents <= file->size() / static_cast<int64_t>(sizeof(Place));
  if (!right) return damaged(path);
  const int64_t bytes = checked_bytes(footer);
  if (file->size() != bytes + 4 * blocks_of(bytes, kBlock) + static_cast<int64_t>(sizeof footer)) return damaged(path);
  CheckedFile places(path, file, file, {0, bytes, kBlock, bytes});
  std::vector<int64_t> firsts(static_cast<size_t>(files) + 1);
  TITAN_RETURN_IF_ERROR(places.read(footer.documents * static_cast<int64_t>(sizeof(Place)), (files + 1) * 8,
                                    reinterpret_cast<char*>(firsts.data())));
  if (firsts.front() != 0 || firsts.back() != footer.documents || !std::is_sorted(firsts.begin(), firsts.end())) {
    return damaged(path);
  }
  return DocumentPlaces(std::move(firsts), std::move(places));
}

absl::StatusOr<DocumentPlaces> DocumentPlaces::get(const std::vector<std::string>& files, const FileKind& kind,
                                                   const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const std::string facts, file_facts(files));
  storage::Files& disk = storage::posix_files();
  const std::string path = storage::join_path(
      folder, absl::StrCat("places-", cache_name(kind), kind.blank_lines ? "-parts-" : "-", facts, ".bin"));
  const auto count = static_cast<int64_t>(files.size());
  if (disk.exists(path)) return open(path, count);
  TITAN_RETURN_IF_ERROR(disk.make_folders(folder));
  TITAN_ASSIGN_OR_RETURN(const auto lock, disk.lock(path + ".lock", storage::LockMode::kExclusive, kMakeTimeout));
  // Another process may have made it meanwhile.
  if (!disk.exists(path)) TITAN_RETURN_IF_ERROR(make_places(files, kind, path));
  return open(path, count);
}

absl::StatusOr<DocumentPosition> DocumentPlaces::place(int64_t document) {
  Place place;
  TITAN_RETURN_IF_ERROR(
      places_.read(document * static_cast<int64_t>(sizeof place), sizeof place, reinterpret_cast<char*>(&place)));
  const auto following = std::upper_bound(firsts_.begin(), firsts_.end(), document);
  return DocumentPosition{following - firsts_.begin() - 1, place.offset, place.line, document};
}

}  // namespace titan::data
