// Bytes of a hub's files.
#include <stop_token>
#include <utility>

#include "common/status/status.h"
#include "worker/data/hub/advice.h"
#include "worker/data/hub/hub_files.h"

namespace titan::data {
namespace {

class HubSource final : public ByteSource {
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

class Hub final : public RemoteFiles {
 public:
  explicit Hub(hub::StreamOptions options) : options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<ByteSource>> open(const std::string& path, int64_t offset) override {
    TITAN_ASSIGN_OR_RETURN(const hub::DatasetPath parsed, hub::parse_dataset_path(path));
    auto stream = hub::open_stream(options_, parsed.repo, parsed.place, parsed.revision, offset, stop_.get_token());
    if (!stream.ok()) return with_advice(stream.status(), options_.settings.endpoint, path);
    return std::make_unique<HubSource>(path, options_.settings.endpoint, *std::move(stream));
  }
  void stop() override { stop_.request_stop(); }

 private:
  const hub::StreamOptions options_;
  std::stop_source stop_;
};

}  // namespace

std::shared_ptr<RemoteFiles> open_hub(const hub::StreamOptions& options) { return std::make_shared<Hub>(options); }

}  // namespace titan::data
