#include "worker/rank/data/documents/remote_bytes.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {
namespace {

constexpr size_t kRemoteStreams = 4;

class RemoteBytes final : public storage::ReadableFile {
 public:
  RemoteBytes(std::shared_ptr<data_files::RemoteFiles> remote, std::string path, int64_t size)
      : remote_(std::move(remote)), path_(std::move(path)), size_(size) {}

  int64_t size() const override { return size_; }

  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    const std::scoped_lock lock(mutex_);
    TITAN_RETURN_IF_ERROR(go_to(offset));
    const absl::Status read = read_on(streams_.back(), bytes, out);
    if (!read.ok()) streams_.pop_back();
    return read;
  }

 private:
  struct Stream {
    int64_t at = 0;
    std::unique_ptr<data_files::ByteSource> bytes;
  };

  // The last stream is the one there.
  absl::Status go_to(int64_t offset) {
    const auto there =
        std::find_if(streams_.begin(), streams_.end(), [&](const Stream& stream) { return stream.at == offset; });
    if (there != streams_.end()) {
      std::rotate(there, there + 1, streams_.end());
      return absl::OkStatus();
    }
    if (streams_.size() == kRemoteStreams) streams_.erase(streams_.begin());
    TITAN_ASSIGN_OR_RETURN(std::unique_ptr<data_files::ByteSource> opened, remote_->open(path_, offset));
    streams_.push_back({offset, std::move(opened)});
    return absl::OkStatus();
  }

  absl::Status read_on(Stream& stream, int64_t bytes, char* out) const {
    while (bytes > 0) {
      TITAN_ASSIGN_OR_RETURN(const size_t got, stream.bytes->read(out, static_cast<size_t>(bytes)));
      if (got == 0) return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", stream.at, " of ", size_));
      stream.at += static_cast<int64_t>(got);
      out += got;
      bytes -= static_cast<int64_t>(got);
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<data_files::RemoteFiles> remote_;
  const std::string path_;
  const int64_t size_;
  std::mutex mutex_;
  std::vector<Stream> streams_;
};

}  // namespace

std::unique_ptr<storage::ReadableFile> remote_bytes(std::shared_ptr<data_files::RemoteFiles> remote,
                                                    const std::string& path, int64_t size) {
  return std::make_unique<RemoteBytes>(std::move(remote), path, size);
}

}  // namespace titan::data
