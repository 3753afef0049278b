// A shard of stored encodings (encodings_manifest.h): its samples have three tensors and a caption.
#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/plan/hf_config/model_match.h"
#include "worker/rank/data/samples/encodings_manifest.h"
#include "worker/rank/data/samples/sample_file.h"

namespace titan::data {
namespace {

absl::Status damaged_shard(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": ", why, "; titan-data verify lists all damage: delete the file and its .json, and encode it again"));
}

// Where the tensors of a shard begin, in bytes of the file.
struct Places {
  int64_t latents = 0, t5 = 0, clip = 0, captions = 0, caption_ends = 0, sums = 0;
};

class EncodingSamples final : public SampleFile {
 public:
  EncodingSamples(std::string path, std::shared_ptr<const EncodingsManifest> manifest,
                  std::shared_ptr<storage::ReadableFile> file)
      : path_(std::move(path)), manifest_(std::move(manifest)), file_(std::move(file)) {}

  // Reads and verifies the file's head.
  absl::Status open(const EncodingsManifest::Shard& shard) {
    if (file_->size() != shard.bytes) {
      return damaged_shard(path_, absl::StrCat("has ", file_->size(), " bytes, and its manifest says ", shard.bytes));
    }
    std::string head(static_cast<size_t>(shard.head_bytes), '\0');
    TITAN_RETURN_IF_ERROR(file_->read(0, shard.head_bytes, head.data()));
    if (storage::crc32c(head.data(), head.size()) != static_cast<uint32_t>(shard.head_sum)) {
      return damaged_shard(path_, absl::StrCat("damaged before byte ", shard.head_bytes, " (checksum)"));
    }
    TITAN_ASSIGN_OR_RETURN(const hf_config::WeightsHeader header, hf_config::read_weights_header(*file_, path_));
    TITAN_RETURN_IF_ERROR(take_places(header, shard.samples));
    const auto take = [&](int64_t begin, std::vector<int64_t>& into) {
      into.resize(static_cast<size_t>(shard.samples));
      std::memcpy(into.data(), head.data() + begin, into.size() * sizeof(int64_t));
    };
    if (std::max(places_.caption_ends, places_.sums) + 8 * shard.samples > shard.head_bytes) {
      return damaged_shard(path_, "its checksums are not in its head");
    }
    take(places_.caption_ends, caption_ends_);
    take(places_.sums, sums_);
    return absl::OkStatus();
  }

  int64_t samples() const override { return static_cast<int64_t>(sums_.size()); }

  absl::StatusOr<Sample> read(int64_t number) override {
    const auto at = static_cast<size_t>(number);
    Sample sample{.key = absl::StrCat(number), .name = absl::StrCat(path_, ": sample ", number)};
    const int64_t caption_begin = at == 0 ? 0 : caption_ends_[at - 1];
    const std::pair<int64_t, int64_t> stretches[] = {
        {places_.latents + number * manifest_->latent_bytes(), manifest_->latent_bytes()},
        {places_.t5 + number * manifest_->t5_bytes(), manifest_->t5_bytes()},
        {places_.clip + number * manifest_->clip_bytes(), manifest_->clip_bytes()},
        {places_.captions + caption_begin, caption_ends_[at] - caption_begin}};
    uint32_t sum = 0;
    for (const auto& [begin, size] : stretches) {
      std::string bytes(static_cast<size_t>(size), '\0');
      TITAN_RETURN_IF_ERROR(file_->read(begin, size, bytes.data()));
      sum = storage::crc32c(bytes.data(), bytes.size(), sum);
      sample.stored_bytes += size;
      const bool is_caption = sample.parts.size() == 3;
      sample.parts.push_back({is_caption ? SamplePart::Kind::kText : SamplePart::Kind::kTensor, std::move(bytes)});
    }
    if (sum == static_cast<uint32_t>(sums_[at])) return sample;
    sample.parts.clear();
    sample.problem = "its encodings are damaged (checksum)";
    return sample;
  }

 private:
  absl::Status take_places(const hf_config::WeightsHeader& header, int64_t samples) {
    const std::tuple<const char*, int64_t*, int64_t> wanted[] = {
        {kStoredLatents, &places_.latents, samples * manifest_->latent_bytes()},
        {kStoredT5, &places_.t5, samples * manifest_->t5_bytes()},
        {kStoredClip, &places_.clip, samples * manifest_->clip_bytes()},
        {kStoredCaptions, &places_.captions, 0},
        {kStoredCaptionEnds, &places_.caption_ends, 8 * samples},
        {kStoredSums, &places_.sums, 8 * samples}};
    for (const auto& [name, begin, bytes] : wanted) {
      const auto found = header.tensors.find(name);
      if (found == header.tensors.end()) return damaged_shard(path_, absl::StrCat("has no tensor \"", name, "\""));
      *begin = header.bytes + found->at("data_offsets").at(0).get<int64_t>();
      if (*begin + bytes > file_->size())
        return damaged_shard(path_, absl::StrCat("tensor \"", name, "\" has other sizes"));
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const std::shared_ptr<const EncodingsManifest> manifest_;
  const std::shared_ptr<storage::ReadableFile> file_;
  Places places_;
  std::vector<int64_t> caption_ends_, sums_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleFile>> open_encodings(const std::string& path, const SampleKind& kind) {
  const EncodingsManifest::Shard* shard = kind.encodings == nullptr ? nullptr : kind.encodings->find(path);
  if (shard == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": is in no manifest of encodings"));
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<storage::ReadableFile> file, open_bytes(path, kind));
  auto samples = std::make_unique<EncodingSamples>(path, kind.encodings, std::move(file));
  TITAN_RETURN_IF_ERROR(samples->open(*shard));
  return samples;
}

}  // namespace titan::data
