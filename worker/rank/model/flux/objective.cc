#include "worker/rank/model/flux/objective.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/home.h"
#include "common/plan/config/image_models.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/samples/encodings_manifest.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/model/flux/encoded_rows.h"
#include "worker/rank/model/flux/encoder_identity.h"
#include "worker/rank/model/flux/inputs.h"
#include "worker/rank/model/flux/packing.h"
#include "worker/rank/model/flux/picture_rows.h"
#include "worker/rank/model/open_samples.h"
#include "worker/rank/random/sample_draws.h"

namespace titan::model::flux {
namespace {

// Validation and sampled pictures draw from other streams than training.
constexpr uint64_t kValidationStream = 0x9e3779b97f4a7c15, kSamplingStream = 0xc2b2ae3d27d4eb4f;

at::Tensor on(const at::Tensor& tensor, at::Device device) { return device::copy_async(tensor, device); }

}  // namespace

absl::Status FluxObjective::load(const config::JobConfig& config, const RankPlace& place, ConditionerOptions options) {
  encoder_type_ = options.dtype;
  latent_channels_ = spec_.in_channels / 4;
  if (!config::uses_encoders(config)) return absl::OkStatus();
  if (config.encoder.shard_t5) options.t5_group = &place.mesh.group(mesh::Axis::kFsdp);
  TITAN_ASSIGN_OR_RETURN(encoders_, load_encoders(spec_, config, options));
  latent_channels_ = encoders_.sizes.images.latent_channels;
  downsampling_ = encoders_.sizes.images.downsampling();
  clip_tokens_ = encoders_.sizes.clip.max_tokens;
  return absl::OkStatus();
}

absl::Status FluxObjective::prepare(const config::JobConfig& config, const RankPlace& place) {
  const config::ValidationSection& validation = config.validation;
  const bool makes_pictures = validation.enable && validation.save_img_count != 0;
  guidance_ = config.training.guidance_scale;
  ConditionerOptions options = conditioner_options(config, place.device);
  options.with_decoder = makes_pictures && place.mesh.rank() == 0;
  TITAN_RETURN_IF_ERROR(load(config, place, options));
  if (encoders_.conditioner == nullptr) return absl::OkStatus();
  if (config::reads_encodings(config)) {
    TITAN_ASSIGN_OR_RETURN(marks_, identify_encoders(options, *encoders_.tokenizers));
    marks_of_ = "that of [encoder]";
  }
  if (!makes_pictures) return absl::OkStatus();
  sampler_ = std::make_unique<PictureSampler>(spec_, encoders_);
  pictures_ = {.rows = validation.local_batch_size,
               .steps = validation.denoising_steps,
               .shift = spec_.flavor != kEvenlySpaced,
               .guides = validation.enable_classifier_free_guidance,
               .scale = validation.classifier_free_guidance_scale,
               .width = config.training.img_size,
               .height = config.training.img_size,
               .seed = static_cast<uint64_t>(config.debug.seed.value_or(0)) ^ kSamplingStream};
  return absl::OkStatus();
}

absl::Status FluxObjective::prepare_shapes(const config::JobConfig& config, const RankPlace& place) {
  ConditionerOptions options = conditioner_options(config, place.device);
  options.shapes_only = true;
  return load(config, place, options);
}

absl::StatusOr<std::shared_ptr<const RowMaker>> FluxObjective::row_maker(const config::JobConfig& config,
                                                                         const data::SampleFiles& found,
                                                                         bool training) {
  if (found.kind.encodings == nullptr) {
    return std::make_shared<PictureRows>(encoders_.tokenizers, static_cast<int>(config.training.img_size));
  }
  const data::EncodingsManifest& encodings = *found.kind.encodings;
  const std::string path = (training ? config.training.dataset_path : config.validation.dataset_path).value_or("");
  TITAN_RETURN_IF_ERROR(check_encodings(encodings, path, spec_, config));
  TITAN_RETURN_IF_ERROR(check_same_encoders(encodings, path, marks_, marks_of_));
  if (marks_.empty()) {
    marks_ = encodings.encoders;
    marks_of_ = absl::StrCat("that of ", path);
  }
  stored_.scale = encodings.scale;
  stored_.shift = encodings.shift;
  downsampling_ = encodings.image_size / encodings.latent_side;
  TITAN_ASSIGN_OR_RETURN(const data::EmptyEncodings empty,
                         data::read_empty_encodings(*found.kind.files, text::expand_home(path), encodings));
  return std::make_shared<EncodedRows>(found.kind.encodings, empty);
}

at::Tensor FluxObjective::stored_latents(const at::Tensor& moments, const at::Tensor& eps) const {
  const at::Tensor wide = encoder_type_ == at::kDouble ? moments.to(at::kDouble) : moments;
  const std::vector<at::Tensor> halves = wide.chunk(2, 1);
  return encoders::sample_latents(stored_, {.mean = halves[0], .logvar = halves[1]}, eps);
}

absl::StatusOr<std::unique_ptr<data::BatchSource>> FluxObjective::open(const config::JobConfig& config,
                                                                       const DataShare& share, bool training) {
  const config::DataLoaderSection& loader = training ? config.training.dataloader : config.validation.dataloader;
  TITAN_ASSIGN_OR_RETURN(const data::SampleFiles found, find_samples(config, training));
  if (!found.warning.empty() && std::find(notes_.begin(), notes_.end(), found.warning) == notes_.end())
    notes_.push_back(found.warning);
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<data::SampleSet> samples,
                         open_samples(config, found, share.dp_rank, share.dp_size));
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<const RowMaker> maker, row_maker(config, found, training));
  data::SampleOrder order = sample_order(*samples, loader);
  if (!training && sampler_ != nullptr) read_prompts(*samples, order, config.validation.save_img_count);
  ImageRowOptions row{.image_size = static_cast<int>(config.training.img_size),
                      .latent_channels = latent_channels_,
                      .downsampling = downsampling_};
  if (training) {
    row.drop_probability = config.training.classifier_free_guidance_prob;
  } else {
    row.times =
        config.validation.all_timesteps ? ImageRowOptions::Times::kAllEight : ImageRowOptions::Times::kOneOfEight;
  }
  const bool loop = training || config.validation.steps > 0;
  const auto seed = static_cast<uint64_t>(config.debug.seed.value_or(0));
  return std::make_unique<ImageBatches>(std::move(samples), std::move(order), std::move(maker), row,
                                        reading_options(loader, share, loop),
                                        training ? seed : seed ^ kValidationStream);
}

absl::StatusOr<std::unique_ptr<data::BatchSource>> FluxObjective::open_training(const config::JobConfig& config,
                                                                                const DataShare& share) {
  return open(config, share, /*training=*/true);
}

absl::StatusOr<std::unique_ptr<data::BatchSource>> FluxObjective::open_validation(const config::JobConfig& config,
                                                                                  const DataShare& share) {
  return open(config, share, /*training=*/false);
}

data::Batch FluxObjective::example(const config::JobConfig& config, int64_t rows) const {
  const int64_t size = config.training.img_size, side = size / downsampling_;
  const auto zeros = [](at::IntArrayRef shape, at::ScalarType type) { return at::zeros({}, type).expand(shape); };
  const at::Tensor latent = zeros({rows, latent_channels_, side, side}, at::kFloat);
  if (config.training.dataloader.format == "encodings") {
    return {{kMoments, zeros({rows, 2 * latent_channels_, side, side}, encoder_type_)},
            {kT5Encoding, zeros({rows, config.encoder.max_t5_encoding_len, spec_.txt_width}, encoder_type_)},
            {kClipEncoding, zeros({rows, spec_.vec_width}, encoder_type_)},
            {kNoise, latent},
            {kEps, latent},
            {kTime, zeros({rows, 1}, at::kFloat)},
            {kRow, zeros({rows}, at::kLong)}};
  }
  return {{kImage, zeros({rows, 3, size, size}, at::kFloat)},
          {kT5Ids, zeros({rows, config.encoder.max_t5_encoding_len}, at::kLong)},
          {kClipIds, zeros({rows, clip_tokens_}, at::kLong)},
          {kNoise, latent},
          {kEps, latent},
          {kTime, zeros({rows, 1}, at::kFloat)},
          {kRow, zeros({rows}, at::kLong)}};
}

Microbatch FluxObjective::microbatch(const data::Batch& batch, const MicrobatchOptions& options) const {
  const at::NoGradGuard no_grad;
  const at::Tensor& times = batch.at(kTime);
  const int64_t copies = times.size(1);
  at::Tensor noise = on(batch.at(kNoise), options.device), latents, txt, y;
  if (batch.has(kMoments)) {
    latents = stored_latents(on(batch.at(kMoments), options.device), on(batch.at(kEps), options.device));
    txt = on(batch.at(kT5Encoding), options.device).to(encoder_type_);
    y = on(batch.at(kClipEncoding), options.device).to(encoder_type_);
  } else {
    latents = encoders_.conditioner->latents(on(batch.at(kImage), options.device), on(batch.at(kEps), options.device));
    txt = encoders_.conditioner->txt(on(batch.at(kT5Ids), options.device));
    y = encoders_.conditioner->vector(on(batch.at(kClipIds), options.device));
  }
  const int64_t height = latents.size(2), width = latents.size(3);
  const at::ScalarType wide = latents.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto repeated = [&](const at::Tensor& x) { return copies == 1 ? x : x.repeat_interleave(copies, 0); };
  latents = repeated(latents.to(wide));
  noise = repeated(noise.to(wide));
  const at::Tensor t = on(times.reshape({-1}), options.device);
  const at::Tensor mix = t.to(wide).view({-1, 1, 1, 1});
  at::Tensor noised = pack((1 - mix) * latents + mix * noise), target = pack(noise - latents);
  FluxInputs inputs{.txt = repeated(txt),
                    .y = repeated(y),
                    .timesteps = t,
                    .guidance = at::full_like(t, guidance_),
                    .txt_ids = at::zeros({1, txt.size(1), 3}, t.options()),
                    .img_ids = image_positions(height, width, options.device)};
  if (const comm::Group* group = options.context.group; group != nullptr && group->size() > 1) {
    inputs = context_share(inputs, *group);
    noised = context_share(noised, *group);
    target = context_share(target, *group);
  }
  inputs.rotation = rotation_table(spec_, inputs.txt_ids, inputs.img_ids, wide);  // Once, not again in every block.
  const at::Tensor& rows = batch.at(kRow);
  const int64_t present = rows.ge(0).sum().item<int64_t>();
  Microbatch made;
  std::map<std::string, at::Tensor>& tensors = made.context.tensors;
  tensors = {{kTxt, inputs.txt},        {kPooled, inputs.y},          {kTimesteps, inputs.timesteps},
             {kTxtIds, inputs.txt_ids}, {kImgIds, inputs.img_ids},    {kLatents, noised},
             {kTarget, target},         {kRotation, inputs.rotation}, {kGuidance, inputs.guidance}};
  if (present < batch.rows()) {
    tensors[kWeights] = on(repeated(rows.ge(0).to(wide)).view({-1, 1, 1}), options.device);
  }
  made.loss_terms = present * copies * target.size(1) * target.size(2);
  return made;
}

namespace {

int64_t tokens_of_row(const config::JobConfig& config, int64_t downsampling) {
  const int64_t side = config.training.img_size / downsampling / 2;
  return config.encoder.max_t5_encoding_len + side * side;
}

}  // namespace

int64_t FluxObjective::units_of_training_row(const config::JobConfig& config) const {
  return tokens_of_row(config, downsampling_);
}

int64_t FluxObjective::units_of_validation_row(const config::JobConfig& config) const {
  return tokens_of_row(config, downsampling_) * (config.validation.all_timesteps ? 8 : 1);
}

// A sample without a caption has no picture. Errors of the files are reported when the rows are read.
void FluxObjective::read_prompts(data::SampleSet& samples, const data::SampleOrder& order, int64_t count) {
  prompts_.clear();
  const int64_t most = count < 0 ? order.samples() : count;
  for (int64_t row = 0; row < order.samples() && std::ssize(prompts_) < most; ++row) {
    const absl::StatusOr<data::Sample> sample = samples.read(order.sample(order.place(row)));
    if (sample.ok() && sample->problem.empty() && sample->caption() != nullptr) prompts_.push_back(*sample->caption());
  }
}

Samples FluxObjective::sample(const WholeModel& model, const comm::DeviceMesh& mesh) {
  return sampler_->sample(model, mesh, prompts_, pictures_);
}

}  // namespace titan::model::flux
