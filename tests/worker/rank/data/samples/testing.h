#pragma once

// Writes tar archives, and provides files that are not on a disk.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/samples/sample.h"

namespace titan::data::testing {

inline SamplePart image(std::string bytes) { return {SamplePart::Kind::kImage, std::move(bytes)}; }
inline SamplePart text(std::string bytes) { return {SamplePart::Kind::kText, std::move(bytes)}; }

inline constexpr std::string_view kPosix(
    "ustar\0"
    "00",
    8),
    kGnu("ustar  \0", 8);

// Sets the checksum of a header.
inline void sign(std::string& header) {
  header.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  std::snprintf(header.data() + 148, 8, "%06o", sum);
}

struct TarEntry {
  char type = '0';
  std::string_view magic = kPosix;
  std::string prefix = {};
  std::string size = {};  // The field's bytes; empty: the size of the content in octal digits.
};

inline std::string tar_header(const std::string& name, size_t size, const TarEntry& entry = {}) {
  std::string header(512, '\0');
  name.substr(0, 100).copy(header.data(), 100);
  std::snprintf(header.data() + 124, 12, "%011zo", size);
  entry.size.copy(header.data() + 124, 12);
  header[156] = entry.type;
  entry.magic.copy(header.data() + 257, 8);
  entry.prefix.copy(header.data() + 345, 155);
  sign(header);
  return header;
}

inline std::string padded(std::string bytes) {
  bytes.resize((bytes.size() + 511) / 512 * 512, '\0');
  return bytes;
}

// A header and its content.
inline std::string tar_member(const std::string& name, const std::string& bytes, const TarEntry& entry = {}) {
  return tar_header(name, bytes.size(), entry) + padded(bytes);
}

// A header with PAX records for the next member, or with type 'g' for all.
inline std::string pax_header(const std::vector<std::pair<std::string, std::string>>& records, char type = 'x') {
  std::string text;
  for (const auto& [key, value] : records) {
    const size_t bare = key.size() + value.size() + 3;
    size_t length = bare + 1;
    while (absl::StrCat(length).size() + bare != length) length = absl::StrCat(length).size() + bare;
    absl::StrAppend(&text, length, " ", key, "=", value, "\n");
  }
  return tar_member("PaxHeaders/x", text, {.type = type});
}

inline std::string tar_end() { return std::string(1024, '\0'); }

// An archive of samples "0000" and so on: an image "image I" and a caption "caption I".
inline std::string small_tar(int64_t samples, int64_t first = 0) {
  std::string tar;
  for (int64_t i = first; i < first + samples; ++i) {
    char key[8];
    std::snprintf(key, sizeof key, "%04d", static_cast<int>(i));
    tar += tar_member(absl::StrCat(key, ".jpg"), absl::StrCat("image ", i));
    tar += tar_member(absl::StrCat(key, ".txt"), absl::StrCat("caption ", i));
  }
  return tar + tar_end();
}

// A file whose bytes a function provides.
class MadeFile final : public storage::ReadableFile {
 public:
  using Fill = std::function<void(int64_t offset, int64_t bytes, char* out)>;
  MadeFile(int64_t size, Fill fill) : size_(size), fill_(std::move(fill)) {}
  int64_t size() const override { return size_; }
  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    if (offset < 0 || offset + bytes > size_) return absl::DataLossError("the file ends before");
    fill_(offset, bytes, out);
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
  const Fill fill_;
};

// A store with objects that can be opened and listed.
class MadeStore final : public storage::Files {
 public:
  std::map<std::string, std::pair<int64_t, MadeFile::Fill>> objects;
  std::atomic<int64_t> bytes_read = 0;

  void add(const std::string& path, const std::string& bytes) {
    objects[path] = {static_cast<int64_t>(bytes.size()), [bytes](int64_t offset, int64_t count, char* out) {
                       bytes.copy(out, static_cast<size_t>(count), static_cast<size_t>(offset));
                     }};
  }

  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> open(const std::string& path) override {
    const auto found = objects.find(path);
    if (found == objects.end()) return absl::NotFoundError(absl::StrCat("open ", path, ": no such object"));
    const auto& [size, fill] = found->second;
    return std::make_unique<MadeFile>(size, [this, fill = fill](int64_t offset, int64_t bytes, char* out) {
      bytes_read += bytes;
      fill(offset, bytes, out);
    });
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& folder) override {
    const std::string begin = folder.ends_with('/') ? folder : folder + "/";
    std::vector<std::string> names;
    for (const auto& [path, object] : objects) {
      if (path.starts_with(begin)) names.push_back(path.substr(begin.size()));
    }
    return names;
  }
  bool exists(const std::string& path) override { return objects.contains(path); }
  bool is_folder(const std::string&) override { return false; }

  absl::StatusOr<std::unique_ptr<storage::WritableFile>> create(const std::string&) override { return refused(); }
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> append_to(const std::string&) override { return refused(); }
  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> open_no_link(const std::string& path) override {
    return open(path);
  }
  absl::Status rename(const std::string&, const std::string&) override { return refused(); }
  absl::Status truncate(const std::string&, int64_t) override { return refused(); }
  absl::Status remove(const std::string&) override { return refused(); }
  absl::Status remove_folder(const std::string&) override { return refused(); }
  absl::Status make_folders(const std::string&) override { return refused(); }
  absl::Status sync_folder(const std::string&) override { return refused(); }
  absl::StatusOr<absl::Time> touch(const std::string&) override { return refused(); }
  absl::StatusOr<absl::Time> modified(const std::string&) override { return refused(); }
  absl::StatusOr<std::unique_ptr<storage::FileLock>> lock(const std::string&, storage::LockMode,
                                                          absl::Duration) override {
    return refused();
  }
  absl::StatusOr<std::unique_ptr<storage::FileLock>> try_lock(const std::string&, storage::LockMode) override {
    return refused();
  }

 private:
  static absl::Status refused() { return absl::UnimplementedError("only for reading"); }
};

// A hub with one file, which counts its streams.
class MadeHub final : public data_files::RemoteFiles {
 public:
  explicit MadeHub(std::string bytes) : bytes_(std::move(bytes)) {}

  absl::StatusOr<std::unique_ptr<data_files::ByteSource>> open(const std::string&, int64_t offset) override {
    ++streams;
    return std::make_unique<Source>(this, offset);
  }
  std::optional<int64_t> size(const std::string& path) const override {
    return path == "unknown.tar" ? std::nullopt : std::optional<int64_t>(static_cast<int64_t>(bytes_.size()));
  }
  void stop() override { stopped = true; }

  std::atomic<int> streams = 0;
  std::atomic<int64_t> bytes_sent = 0;
  std::atomic<bool> stopped = false;

 private:
  class Source final : public data_files::ByteSource {
   public:
    Source(MadeHub* hub, int64_t at) : hub_(hub), at_(at) {}
    absl::StatusOr<size_t> read(char* buffer, size_t size) override {
      if (hub_->stopped) return absl::CancelledError("interrupted");
      const size_t part = hub_->bytes_.copy(buffer, size, static_cast<size_t>(at_));
      at_ += static_cast<int64_t>(part);
      hub_->bytes_sent += static_cast<int64_t>(part);
      return part;
    }

   private:
    MadeHub* const hub_;
    int64_t at_;
  };

  const std::string bytes_;
};

}  // namespace titan::data::testing
