// Bytes of a hub's files.
#include <map>
#include <stop_token>
#include <utility>

#include "common/base/status/status.h"
#include "worker/rank/data/documents/hub/advice.h"
#include "worker/rank/data/documents/hub/hub_files.h"

namespace titan::data {
namespace {

class HubSource final : public data_files::ByteSource {
 public:
  HubSource(std::string path, std::string endpoint, std::unique_ptr<hub::Stream> stream)
      : path_(std::move(path)), endpoint_(std::move(endpoint)), stream_(std::move(stream)) {}

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    absl::StatusOr<size_t> got = stream_->read(buffer, size);
    if (!got.ok()) return with_advice(got.status(), endpoint_, path_);
    return got;
  }

 private:
  const std::string path_, endpoint_;
  const std::unique_ptr<hub::Stream> stream_;
};

class Hub final : public data_files::RemoteFiles {
 public:
  Hub(hub::StreamOptions options, const std::vector<HubFile>& files) : options_(std::move(options)) {
    for (const HubFile& file : files) {
      if (file.size.has_value()) sizes_[file.path] = *file.size;
    }
  }

  absl::StatusOr<std::unique_ptr<data_files::ByteSource>> open(const std::string& path, int64_t offset) override {
    TITAN_ASSIGN_OR_RETURN(const hub::DatasetPath parsed, hub::parse_dataset_path(path));
    auto stream = hub::open_stream(options_, parsed.repo, parsed.place, parsed.revision, offset, stop_.get_token());
    if (!stream.ok()) return with_advice(stream.status(), options_.settings.endpoint, path);
    return std::make_unique<HubSource>(path, options_.settings.endpoint, *std::move(stream));
  }
  std::optional<int64_t> size(const std::string& path) const override {
    const auto known = sizes_.find(path);
    return known == sizes_.end() ? std::nullopt : std::optional<int64_t>(known->second);
  }
  void stop() override { stop_.request_stop(); }

 private:
  const hub::StreamOptions options_;
  std::map<std::string, int64_t> sizes_;
  std::stop_source stop_;
};

}  // namespace

std::shared_ptr<data_files::RemoteFiles> open_hub(const hub::StreamOptions& options,
                                                  const std::vector<HubFile>& files) {
  return std::make_shared<Hub>(options, files);
}

}  // namespace titan::data
