#include "worker/rank/tools/images/encoding.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/data_files/check_files.h"
#include "common/io/storage/crc32c.h"
#include "common/plan/config/trained_model.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/data/samples/encodings_manifest.h"
#include "worker/rank/data/samples/sample_rows.h"
#include "worker/rank/model/flux/encoder_identity.h"
#include "worker/rank/model/flux/job_encoders.h"
#include "worker/rank/model/flux/picture_rows.h"
#include "worker/rank/model/flux/pictures.h"
#include "worker/rank/model/open_samples.h"
#include "worker/rank/random/sample_draws.h"
#include "worker/rank/tools/images/encodings_folder.h"
#include "worker/rank/tools/images/shard_writer.h"

namespace titan::tools {
namespace {

namespace flux = model::flux;
using Shard = data::EncodingsManifest::Shard;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxNamed = 100;
constexpr double kCenter = 0.5;

at::ScalarType stored_type(const std::string& dtype, at::ScalarType encoders) {
  if (dtype == "auto") return encoders;
  return dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

// The encoders' input for a sample, or why it cannot be used.
struct Decoded {
  absl::Status status;  // An error of the files.
  std::string problem;  // With the sample's name.
  std::string caption;
  at::Tensor image, t5_ids, clip_ids;
};

// Makes the shards of one process.
class Encoding {
 public:
  Encoding(const config::JobConfig& job, const EncodingOptions& options,
           const std::function<void(const std::string&)>& report,
           const std::function<void(const EncodingProgress&)>& show)
      : job_(job),
        options_(options),
        loader_(options.training ? job.training.dataloader : job.validation.dataloader),
        report_(report),
        show_(show),
        folder_(storage::posix_files(), options.out, absl::StrCat(options.part, "-of-", options.parts)) {}

  absl::StatusOr<EncodingResult> run() {
    TITAN_RETURN_IF_ERROR(open_data());
    TITAN_RETURN_IF_ERROR(load_encoders());
    TITAN_RETURN_IF_ERROR(folder_.claim(plan(), empty_));
    began_ = Clock::now();
    for (int64_t number = options_.part; number < shards(); number += options_.parts) {
      ++result_.shards;
      result_.progress.total += end_of(number) - first_of(number);
    }
    for (int64_t number = options_.part; number < shards(); number += options_.parts) {
      if (const std::optional<Shard> there = folder_.find_finished(number)) {
        ++result_.kept_shards;
        result_.progress.kept += end_of(number) - first_of(number);
        result_.progress.skipped += there->skipped;
        continue;
      }
      TITAN_RETURN_IF_ERROR(make(number));
    }
    TITAN_RETURN_IF_ERROR(publish());
    return result_;
  }

 private:
  absl::Status open_data() {
    TITAN_ASSIGN_OR_RETURN(const data::SampleFiles found, model::find_samples(job_, options_.training));
    if (found.kind.encodings != nullptr) {
      return absl::InvalidArgumentError(
          "the job's data is stored encodings already: set dataloader.format and dataset_path to the images");
    }
    if (!found.warning.empty()) report_("warning: " + found.warning);
    // All processes share the indexes of archives.
    TITAN_ASSIGN_OR_RETURN(samples_, data::SampleSet::open({.files = found.files,
                                                            .kind = found.kind,
                                                            .index_folder = folder_.path(".index"),
                                                            .rank = static_cast<int>(options_.part),
                                                            .ranks = static_cast<int>(options_.parts)}));
    for (const std::string& file : found.files) {
      TITAN_ASSIGN_OR_RETURN(const std::string facts, data::facts_of(file, found.kind));
      absl::StrAppend(&source_, file, " ", facts, "\n");
    }
    return absl::OkStatus();
  }

  absl::Status load_encoders() {
    TITAN_ASSIGN_OR_RETURN(const models::ModelSpec spec, config::resolve_model(job_.model));
    TITAN_ASSIGN_OR_RETURN(device_, comm::make_device(options_.device, 0));
    const flux::ConditionerOptions options = flux::conditioner_options(job_, device_->torch_device());
    TITAN_ASSIGN_OR_RETURN(encoders_, flux::load_encoders(*spec.flux, job_, options));
    const flux::EncoderOptions& sizes = encoders_.sizes;
    rows_ = std::make_unique<flux::PictureRows>(encoders_.tokenizers, static_cast<int>(job_.training.img_size));
    type_ = stored_type(options_.dtype, options.dtype);
    TITAN_ASSIGN_OR_RETURN(manifest_.dtype, checkpoint::safetensors_dtype(type_));
    manifest_.image_size = job_.training.img_size;
    manifest_.latent_channels = sizes.images.latent_channels;
    manifest_.latent_side = job_.training.img_size / sizes.images.downsampling();
    manifest_.t5_tokens = encoders_.tokenizers->t5_length();
    manifest_.t5_width = sizes.t5.dim;
    manifest_.clip_width = sizes.clip.dim;
    manifest_.scale = sizes.images.scale;
    manifest_.shift = sizes.images.shift;
    manifest_.crop = options_.center_crop ? "center" : absl::StrCat("random by seed ", seed());
    TITAN_ASSIGN_OR_RETURN(manifest_.encoders, flux::identify_encoders(options, *encoders_.tokenizers));
    TITAN_ASSIGN_OR_RETURN(empty_, encode_empty());
    manifest_.empty_sum = storage::crc32c(empty_.data(), empty_.size());
    const int64_t row = manifest_.latent_bytes() + manifest_.t5_bytes() + manifest_.clip_bytes();
    per_shard_ = options_.shard_samples > 0 ? options_.shard_samples : std::max<int64_t>(1, options_.shard_bytes / row);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> encode_empty() const {
    const flux::Captions empty = flux::encode_captions(encoders_, {""}, device_->torch_device());
    return empty_file(kept(empty.txt[0]), kept(empty.y[0]));
  }

  at::Tensor placed(const at::Tensor& tensor) const { return tensor.to(device_->torch_device()); }
  at::Tensor kept(const at::Tensor& tensor) const { return tensor.to(at::kCPU, type_).contiguous(); }
  uint64_t seed() const { return static_cast<uint64_t>(job_.debug.seed.value_or(0)); }

  int64_t shards() const { return (samples_->samples() + per_shard_ - 1) / per_shard_; }
  int64_t first_of(int64_t shard) const { return shard * per_shard_; }
  int64_t end_of(int64_t shard) const { return std::min(samples_->samples(), (shard + 1) * per_shard_); }

  // Everything on which the shards depend.
  std::string plan() const {
    nlohmann::json plan = nlohmann::json::parse(manifest_text(manifest_));
    plan.erase("crc32c");
    plan["source"] = {{"files", absl::StrFormat("%08x", storage::crc32c(source_.data(), source_.size()))},
                      {"samples", samples_->samples()},
                      {"image_key", loader_.image_key},
                      {"caption_key", loader_.caption_key}};
    plan["samples_of_a_shard"] = per_shard_;
    plan["batch"] = options_.batch;
    return plan.dump(1) + "\n";
  }

  Decoded decode(int64_t number) const {
    Decoded decoded;
    absl::StatusOr<data::Sample> sample = samples_->read(number);
    decoded.status = sample.status();
    if (!sample.ok()) return decoded;
    std::string problem = sample->problem;
    if (problem.empty()) {
      const double crop = options_.center_crop ? kCenter : random::draw_sample(seed(), number, 0).crop;
      absl::StatusOr<std::vector<at::Tensor>> made = rows_->make(*sample, {.crop = crop});
      if (made.ok()) {
        decoded.image = (*made)[0];
        decoded.t5_ids = (*made)[1];
        decoded.clip_ids = (*made)[2];
        decoded.caption = *sample->caption();
        return decoded;
      }
      problem = std::string(made.status().message());
    }
    decoded.problem = absl::StrCat(sample->name, ": ", problem);
    return decoded;
  }

  // Decodes samples [begin, end) on several threads.
  std::vector<Decoded> decode_batch(int64_t begin, int64_t end) const {
    std::vector<Decoded> batch(static_cast<size_t>(end - begin));
    std::atomic<int64_t> next{begin};
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < std::min<int64_t>(loader_.decode_threads, end - begin); ++i) {
      threads.emplace_back([&] {
        for (int64_t number = next++; number < end; number = next++) {
          batch[static_cast<size_t>(number - begin)] = decode(number);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return batch;
  }

  absl::Status make(int64_t number) {
    const int64_t end = end_of(number);
    std::vector<EncodedSample> samples;
    int64_t skipped = 0;
    const auto start = [&](int64_t begin) {
      return std::async(std::launch::async,
                        [this, begin, end] { return decode_batch(begin, std::min(begin + options_.batch, end)); });
    };
    std::future<std::vector<Decoded>> ahead = start(first_of(number));
    for (int64_t begin = first_of(number); begin < end; begin += options_.batch) {
      const std::vector<Decoded> batch = ahead.get();
      if (begin + options_.batch < end) ahead = start(begin + options_.batch);
      TITAN_RETURN_IF_ERROR(encode(batch, begin, samples, skipped));
      result_.progress.samples += static_cast<int64_t>(batch.size());
      result_.progress.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
      for (const std::string& warning : samples_->take_warnings()) report_("warning: " + warning);
      show_(result_.progress);
    }
    return folder_.write_shard(number, samples, skipped);
  }

  absl::Status encode(const std::vector<Decoded>& batch, int64_t begin, std::vector<EncodedSample>& samples,
                      int64_t& skipped) {
    std::vector<at::Tensor> images, t5_ids, clip_ids;
    const size_t first = samples.size();
    for (size_t i = 0; i < batch.size(); ++i) {
      const Decoded& one = batch[i];
      TITAN_RETURN_IF_ERROR(one.status);
      if (!one.problem.empty()) {
        ++skipped;
        TITAN_RETURN_IF_ERROR(note_skipped(one.problem));
        continue;
      }
      images.push_back(one.image);
      t5_ids.push_back(one.t5_ids);
      clip_ids.push_back(one.clip_ids);
      samples.push_back({.source = begin + static_cast<int64_t>(i), .caption = one.caption});
    }
    if (images.empty()) return absl::OkStatus();
    const encoders::Moments moments = encoders_.conditioner->moments(placed(at::stack(images)));
    const at::Tensor latents = kept(at::cat({moments.mean, moments.logvar}, 1));
    const at::Tensor t5 = kept(encoders_.conditioner->txt(placed(at::stack(t5_ids))));
    const at::Tensor clip = kept(encoders_.conditioner->vector(placed(at::stack(clip_ids))));
    for (size_t i = first; i < samples.size(); ++i) {
      const auto row = static_cast<int64_t>(i - first);
      samples[i].latents = latents[row];  // Rows of a contiguous tensor are contiguous.
      samples[i].t5 = t5[row];
      samples[i].clip = clip[row];
    }
    return absl::OkStatus();
  }

  absl::Status note_skipped(const std::string& problem) {
    const int64_t number = ++result_.progress.skipped;
    if (number <= kMaxNamed) report_(problem + ", skipped");
    reasons_.push_back(problem);
    if (loader_.max_bad_samples < 0 || number <= loader_.max_bad_samples) return absl::OkStatus();
    return data::too_many_bad_samples(problem, number, loader_.max_bad_samples);
  }

  // Writes the manifest if all shards are complete.
  absl::Status publish() {
    for (int64_t number = 0; number < shards(); ++number) {
      std::optional<Shard> shard = folder_.find_finished(number);
      if (!shard.has_value()) return absl::OkStatus();
      manifest_.shards.push_back(*std::move(shard));
    }
    result_.samples = manifest_.samples();
    result_.skipped = manifest_.skipped();
    if (result_.samples == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "no sample could be encoded", reasons_.empty() ? "" : ": " + data_files::first_reasons(reasons_)));
    }
    if (loader_.max_bad_samples >= 0 && result_.skipped > loader_.max_bad_samples) {
      return absl::InvalidArgumentError(absl::StrCat(counted(result_.skipped, "unusable sample"),
                                                     " of all processes, more than dataloader.max_bad_samples = ",
                                                     loader_.max_bad_samples, ": raise it and run one of them again"));
    }
    TITAN_RETURN_IF_ERROR(folder_.complete(manifest_));
    result_.complete = true;
    return absl::OkStatus();
  }

  const config::JobConfig& job_;
  const EncodingOptions& options_;
  const config::DataLoaderSection& loader_;
  const std::function<void(const std::string&)>& report_;
  const std::function<void(const EncodingProgress&)>& show_;
  EncodingsFolder folder_;

  std::shared_ptr<data::SampleSet> samples_;
  std::string source_;  // The files, and what identifies their content.
  std::unique_ptr<device::Device> device_;
  flux::JobEncoders encoders_;
  std::unique_ptr<flux::PictureRows> rows_;
  at::ScalarType type_ = at::kFloat;
  std::string empty_;  // Bytes of empty.safetensors.
  data::EncodingsManifest manifest_;
  int64_t per_shard_ = 1;
  Clock::time_point began_;
  std::vector<std::string> reasons_;  // Why samples were skipped.
  EncodingResult result_;
};

}  // namespace

absl::StatusOr<EncodingResult> encode_images(const config::JobConfig& job, const EncodingOptions& options,
                                             const std::function<void(const std::string&)>& report,
                                             const std::function<void(const EncodingProgress&)>& show) {
  const at::NoGradGuard no_grad;
  return Encoding(job, options, report, show).run();
}

}  // namespace titan::tools
