#include "worker/rank/data/documents/hub/hub_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stop_token>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/io/data_files/datasets.h"
#include "common/io/hub/client.h"
#include "common/io/hub/settings.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"

namespace titan::data {
namespace {

constexpr char kCacheGib[] = "TITAN_RANK_HUB_CACHE_GIB";

absl::StatusOr<int64_t> cache_bytes(int64_t usual) {
  const char* text = std::getenv(kCacheGib);
  if (text == nullptr || *text == '\0') return usual;
  double gib = 0;
  if (absl::SimpleAtod(text, &gib) && gib >= 0 && gib < 1e6) return static_cast<int64_t>(std::ldexp(gib, 30));
  return absl::InvalidArgumentError(absl::StrCat(kCacheGib, " is '", text, "': it must be a number of GiB"));
}

void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

}  // namespace

absl::StatusOr<hub::StreamOptions> hub_options() {
  const http::Environment environment = http::process_environment();
  hub::StreamOptions options;
  std::vector<std::string> warnings;
  TITAN_ASSIGN_OR_RETURN(options.settings, hub::settings_from(environment, "", "", warnings));
  for (const std::string& warning : warnings) warn(warning);
  options.retry.on_retry = [](const absl::Status& why, absl::Duration wait) {
    warn(absl::StrCat(why.message(), "; the request is repeated in ",
                      absl::FormatDuration(absl::Trunc(wait, absl::Seconds(1)))));
  };
  const std::string home = hub::home_folder(environment);
  if (!home.empty()) options.cache_folder = home + "/titan";
  TITAN_ASSIGN_OR_RETURN(options.cache_bytes, cache_bytes(options.cache_bytes));
  if (options.cache_bytes == 0) options.cache_folder.clear();
  return options;
}

namespace {

constexpr int kAttempts = 4;  // For the listing: a wrong address is reported within seconds.
constexpr absl::Duration kMaxWaiting = absl::Minutes(10);

struct Listing {
  std::string commit;
  std::vector<std::string> names;
  std::vector<int64_t> sizes;  // One per name, or none at all.
};

bool is_in(const std::string& place, const std::string& name) {
  if (names_files(place)) return fnmatch(place.c_str(), name.c_str(), FNM_PATHNAME) == 0;
  const size_t slash = name.rfind('/');
  return place == (slash == std::string::npos ? "" : name.substr(0, slash));
}

absl::StatusOr<Listing> ask(const hub::StreamOptions& options, const hub::DatasetPath& path) {
  http::RetryPolicy retry = options.retry;
  retry.attempts = std::min(retry.attempts, kAttempts);
  hub::HubClient client(options.settings, retry);
  Listing listing{.commit = path.revision};
  if (!hub::is_commit(path.revision)) {
    TITAN_ASSIGN_OR_RETURN(listing.commit, client.resolve(path.repo, path.revision, {}));
  }
  const std::string folder = names_files(path.place) ? hub::folder_of(path.place) : path.place;
  TITAN_ASSIGN_OR_RETURN(const std::vector<hub::RemoteFile> all, client.list(path.repo, listing.commit, {}, folder));
  for (const hub::RemoteFile& remote : all) {
    if (!is_in(path.place, remote.name)) continue;
    listing.names.push_back(remote.name);
    listing.sizes.push_back(remote.size);
  }
  if (!listing.names.empty()) return listing;
  return absl::NotFoundError(absl::StrCat("no file of commit ", listing.commit, " matches"));
}

std::string to_text(const std::string& path, const Listing& listing) {
  const nlohmann::json json = {
      {"path", path}, {"commit", listing.commit}, {"files", listing.names}, {"sizes", listing.sizes}};
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string text_of(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

// Returns no value if the text is not a record of this path.
std::optional<Listing> from_text(const std::string& path, const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || text_of(json, "path") != path) return std::nullopt;
  Listing listing{.commit = text_of(json, "commit")};
  if (!json.contains("files")) return std::nullopt;
  for (const nlohmann::json& name : json["files"]) {
    if (!name.is_string() || !hub::check_file_name(name).ok()) return std::nullopt;
    listing.names.push_back(name);
  }
  for (const nlohmann::json& size : json.value("sizes", nlohmann::json::array())) {
    if (!size.is_number_unsigned()) return std::nullopt;
    listing.sizes.push_back(size);
  }
  const bool is_complete = listing.sizes.empty() || listing.sizes.size() == listing.names.size();
  if (!is_complete || !hub::is_commit(listing.commit) || listing.names.empty()) return std::nullopt;
  return listing;
}

absl::StatusOr<Listing> recorded(const hub::StreamOptions& options, const hub::DatasetPath& path,
                                 const std::string& folder) {
  if (folder.empty()) return ask(options, path);
  const std::string text = hub::to_text(path);
  storage::Files& disk = storage::posix_files();
  const std::string file =
      storage::join_path(folder, absl::StrFormat("hub-%08x.json", storage::crc32c(text.data(), text.size())));
  const auto there = [&]() -> std::optional<Listing> {
    const absl::StatusOr<std::string> read = storage::read_file(disk, file);
    return read.ok() ? from_text(text, *read) : std::nullopt;
  };
  if (std::optional<Listing> found = there()) return *std::move(found);
  TITAN_RETURN_IF_ERROR(disk.make_folders(folder));
  TITAN_ASSIGN_OR_RETURN(const auto lock, disk.lock(file + ".lock", storage::LockMode::kExclusive, kMaxWaiting));
  if (std::optional<Listing> found = there())
    return *std::move(found);  // Another process may have listed them
                               // meanwhile.
  TITAN_ASSIGN_OR_RETURN(Listing listing, ask(options, path));
  TITAN_RETURN_IF_ERROR(storage::atomic_write(disk, file, to_text(text, listing)));
  return listing;
}

}  // namespace

bool names_files(const std::string& place) {
  const bool is_archive = absl::EndsWith(place, ".tar");  // It holds samples of images and texts.
  return is_archive || place.find_first_of("*?[") != std::string::npos || data_files::format_of_file(place).has_value();
}

absl::StatusOr<std::vector<HubFile>> hub_files(const hub::StreamOptions& options, const hub::DatasetPath& path,
                                               const std::string& folder) {
  const absl::StatusOr<Listing> listing = recorded(options, path, folder);
  if (!listing.ok()) return with_advice(listing.status(), options.settings.endpoint, hub::to_text(path));
  std::vector<HubFile> files;
  for (const std::string& name : listing->names)
    files.push_back({hub::to_text({.repo = path.repo, .revision = listing->commit, .place = name}), std::nullopt});
  for (size_t i = 0; i < listing->sizes.size(); ++i) files[i].size = listing->sizes[i];
  return files;
}

namespace {

// Streams the bytes of one of the hub's files.
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

absl::Status with_advice(const absl::Status& status, const std::string& endpoint, const std::string& path) {
  const absl::Status named = annotate(status, path);
  if (status.ok() || !absl::IsUnavailable(status)) return named;
  return {status.code(), absl::StrCat(named.message(), "; the hub is ", endpoint,
                                      ": set HF_ENDPOINT to one that this node reaches, or dataset_path to a folder "
                                      "with the files")};
}

}  // namespace titan::data
