#include "worker/rank/tools/generate/pictures.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/base/text/utf8.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/json.h"
#include "common/plan/encoders/cost.h"

namespace titan::tools {
namespace {

using model::flux::PictureOptions;

// Returns whether the sampler's times are shifted, as the pipeline's scheduler says. Without one, the model with the
// guidance's layers is FLUX.1-dev, and the other FLUX.1-schnell.
absl::StatusOr<bool> shifts(storage::Files& files, const ModelSource& source) {
  const std::string path = storage::join_path(source.pipeline, "scheduler/scheduler_config.json");
  if (source.pipeline.empty() || !files.exists(path)) return source.spec.flux->guidance_embed;
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, 1 << 20));
  const nlohmann::json scheduler = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto found = scheduler.is_object() ? scheduler.find("use_dynamic_shifting") : scheduler.end();
  if (!scheduler.is_object() || found == scheduler.end() || !found->is_boolean())
    return absl::FailedPreconditionError(absl::StrCat(path, ": use_dynamic_shifting is not a boolean"));
  return found->get<bool>();
}

// Settings for released weights: those of their model cards.
absl::StatusOr<PicturePlan> plan_of_release(storage::Files& files, const ModelSource& source) {
  constexpr int kSchnellSteps = 4;
  constexpr int64_t kPixels = 1024;
  PicturePlan plan;
  TITAN_ASSIGN_OR_RETURN(plan.options.shift, shifts(files, source));
  plan.options.steps = plan.options.shift ? 50 : kSchnellSteps;
  plan.options.scale = 3.5;
  plan.options.width = plan.options.height = kPixels;
  const auto part = [&](const char* name) {
    return source.pipeline.empty() ? std::string() : storage::join_path(source.pipeline, name);
  };
  plan.job.encoder.t5_encoder = part("text_encoder_2");
  plan.job.encoder.clip_encoder = part("text_encoder");
  plan.job.encoder.autoencoder_path = part("vae");
  plan.job.encoder.max_t5_encoding_len = plan.options.shift ? 512 : 256;
  return plan;
}

absl::StatusOr<PicturePlan> plan_of_job(const ModelSource& source) {
  PicturePlan plan;
  auto read = config::from_json(source.job);
  if (!read.ok()) return annotate(read.status(), "the configuration in the checkpoint");
  plan.job = *std::move(read);
  const config::JobConfig& job = plan.job;
  const bool guides = job.training.classifier_free_guidance_prob > 0;
  plan.options = {.rows = job.inference.local_batch_size,
                  .steps = job.validation.denoising_steps,
                  .shift = source.spec.flavor != model::flux::kEvenlySpaced,
                  .guides = guides && !source.spec.flux->guidance_embed,
                  .scale = source.spec.flux->guidance_embed ? 3.5 : job.validation.classifier_free_guidance_scale,
                  .width = job.inference.img_size.value_or(job.training.img_size)};
  plan.options.height = plan.options.width;
  plan.image = absl::StrCat(storage::join_path(job.job.dump_folder, job.inference.save_img_folder), "/");
  plan.prompts_path = job.inference.prompts_path;
  return plan;
}

absl::Status check_encoder(const std::string& path, const char* flag) {
  if (!path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the checkpoint does not say which encoders its model reads: give their folders with --t5, --clip "
                   "and --autoencoder (",
                   flag, " is missing)"));
}

absl::Status check_side(const char* flag, int64_t pixels, int64_t token) {
  if (pixels > 0 && pixels % token == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", pixels, ": not a multiple of ", token, ", the pixels along a side of a token"));
}

// Checks that the device could hold one batch of pictures while the autoencoder decodes it, which takes most memory by
// far. A kernel would end the process instead of reporting an error.
absl::Status check_memory(const PictureOptions& options, const encoders::AutoencoderOptions& autoencoder,
                          int64_t pictures, at::ScalarType type, int64_t limit) {
  const int64_t rows = std::min(options.rows, pictures);
  const auto number_bytes = static_cast<int64_t>(c10::elementSize(type));
  const int64_t needed =
      rows * encoders::decoder_activation_bytes(autoencoder, options.height, options.width, number_bytes);
  if (limit <= 0 || needed <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("--width ", options.width, " and --height ", options.height, ": decoding ", counted(rows, "picture"),
                   " at a time takes at least ", gibibytes(needed), ", and the device has ", gibibytes(limit),
                   rows > 1 ? "; lower --batch" : ""));
}

// Makes the folder of a file, and checks that files can be made in it.
absl::Status prepare_folder(const std::string& file) {
  std::string folder = std::filesystem::path(file).parent_path().string();
  if (folder.empty()) folder = ".";
  TITAN_RETURN_IF_ERROR(storage::posix_files().make_folders(folder));
  if (::access(folder.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("--image ", file, ": the folder cannot be written"));
}

// Warns about prompts of which T5 reads only the beginning.
absl::Status warn_of_cuts(model::flux::CaptionTokenizers& tokenizers, const std::vector<std::string>& prompts,
                          const std::function<void(const std::string&)>& warn) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    TITAN_ASSIGN_OR_RETURN(const int64_t tokens, tokenizers.t5_tokens(prompts[i]));
    if (tokens <= tokenizers.t5_length()) continue;
    warn(absl::StrCat("prompt ", i + 1, " has ", tokens, " tokens, and the model reads the first ",
                      tokenizers.t5_length(), " (encoder.max_t5_encoding_len)"));
  }
  return absl::OkStatus();
}

// Replaces names of repositories by what the working folder or the installation has of them, as in a job.
config::EncoderSection resolved(const PictureChoice& choice) {
  config::JobConfig job;
  job.model.name = "flux";
  job.encoder.t5_encoder = choice.t5;
  job.encoder.clip_encoder = choice.clip;
  job.encoder.autoencoder_path = choice.autoencoder;
  config::find_downloads(job.encoder);
  config::resolve_assets(job);
  return job.encoder;
}

absl::StatusOr<model::flux::JobEncoders> encoders_of(const ModelSource& source, const PicturePlan& plan,
                                                     const RankOptions& ranks, at::Device device, bool decodes) {
  model::flux::ConditionerOptions options = model::flux::conditioner_options(plan.job, device);
  options.dtype = ranks.dtype;
  options.with_decoder = decodes;
  return model::flux::load_encoders(*source.spec.flux, plan.job, options);
}

}  // namespace

absl::StatusOr<PicturePlan> plan_pictures(storage::Files& files, const ModelSource& source,
                                          const PictureChoice& choice) {
  TITAN_ASSIGN_OR_RETURN(PicturePlan plan,
                         source.job.is_object() ? plan_of_job(source) : plan_of_release(files, source));
  config::EncoderSection& encoder = plan.job.encoder;
  const config::EncoderSection chosen = resolved(choice);
  if (!choice.t5.empty()) encoder.t5_encoder = chosen.t5_encoder;
  if (!choice.clip.empty()) encoder.clip_encoder = chosen.clip_encoder;
  if (!choice.autoencoder.empty()) encoder.autoencoder_path = chosen.autoencoder_path;
  TITAN_RETURN_IF_ERROR(check_encoder(encoder.t5_encoder, "--t5"));
  TITAN_RETURN_IF_ERROR(check_encoder(encoder.clip_encoder, "--clip"));
  TITAN_RETURN_IF_ERROR(check_encoder(encoder.autoencoder_path, "--autoencoder"));
  PictureOptions& options = plan.options;
  options.seed = choice.seed;
  options.steps = choice.steps.value_or(options.steps);
  options.rows = choice.rows.value_or(options.rows);
  options.width = choice.width.value_or(options.width);
  options.height = choice.height.value_or(options.height);
  if (choice.guidance) {
    if (!std::isfinite(*choice.guidance))
      return absl::InvalidArgumentError(absl::StrCat("--guidance ", *choice.guidance, ": is not a finite number"));
    options.scale = *choice.guidance;
    options.guides = !source.spec.flux->guidance_embed && *choice.guidance != 0 && *choice.guidance != 1;
  }
  if (!choice.image.empty()) plan.image = choice.image;
  if (plan.image.empty()) return absl::InvalidArgumentError("no file for the picture: give --image FILE.png");
  return plan;
}

absl::StatusOr<std::vector<std::string>> picture_files(const std::string& image, size_t prompts) {
  const std::filesystem::path path = image;
  const bool folder = !path.has_filename() || std::filesystem::is_directory(path);
  if (!folder && absl::AsciiStrToLower(path.extension().string()) != ".png") {
    return absl::InvalidArgumentError(
        absl::StrCat("--image ", image, ": pictures are PNG files: end the name with .png, or a folder's with /"));
  }
  std::vector<std::string> files;
  for (size_t i = 0; i < prompts; ++i) {
    if (folder) {
      files.push_back((path / absl::StrFormat("image_prompt%d.png", i)).string());
    } else if (prompts == 1) {
      files.push_back(image);
    } else {
      const std::string name = absl::StrFormat("%s-%03d%s", path.stem().string(), i, path.extension().string());
      files.push_back((path.parent_path() / name).string());
    }
  }
  return files;
}

absl::Status check_prompts(const std::vector<std::string>& prompts) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (!text::is_utf8(prompts[i]))
      return absl::InvalidArgumentError(absl::StrCat("prompt ", i + 1, " is not text in UTF-8"));
  }
  return absl::OkStatus();
}

absl::Status make_pictures(storage::Files& files, const ModelSource& source, const PicturePlan& plan,
                           const RankOptions& ranks, const std::vector<std::string>& prompts,
                           const std::function<void(const std::string& warning)>& warn,
                           const std::function<void(size_t prompt, const std::string& file)>& made) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> paths, picture_files(plan.image, prompts.size()));
  TITAN_RETURN_IF_ERROR(prepare_folder(paths.front()));
  // Ranks on CPUs are threads that can read the same encoders.
  std::optional<model::flux::JobEncoders> shared;
  if (ranks.device == "cpu") {
    TITAN_ASSIGN_OR_RETURN(shared, encoders_of(source, plan, ranks, at::kCPU, /*decodes=*/true));
  }
  return run_ranks(ranks, [&](device::Device& device, const comm::DeviceMesh& mesh) -> absl::Status {
    std::optional<model::flux::JobEncoders> own;
    if (!shared) {
      TITAN_ASSIGN_OR_RETURN(own, encoders_of(source, plan, ranks, device.torch_device(), mesh.rank() == 0));
    }
    const model::flux::JobEncoders& encoders = own ? *own : *shared;
    const int64_t token = 2 * encoders.sizes.images.downsampling();
    TITAN_RETURN_IF_ERROR(check_side("--width", plan.options.width, token));
    TITAN_RETURN_IF_ERROR(check_side("--height", plan.options.height, token));
    TITAN_RETURN_IF_ERROR(check_memory(plan.options, encoders.sizes.images, std::ssize(prompts), ranks.dtype,
                                       device.total_memory_bytes()));
    if (mesh.rank() == 0) TITAN_RETURN_IF_ERROR(warn_of_cuts(*encoders.tokenizers, prompts, warn));
    TITAN_ASSIGN_OR_RETURN(const auto model, RankModel::load(files, source, ranks, device, mesh));
    const model::flux::PictureSampler sampler(*source.spec.flux, encoders);
    const model::WholeModel whole = model->whole();
    const auto rows = static_cast<size_t>(plan.options.rows);
    for (size_t first = 0; first < prompts.size(); first += rows) {
      const size_t count = std::min(rows, prompts.size() - first);
      PictureOptions options = plan.options;
      options.first_number = static_cast<int64_t>(first);
      const auto begin = prompts.begin() + static_cast<int64_t>(first);
      const model::Samples samples = sampler.sample(whole, mesh, {begin, begin + static_cast<int64_t>(count)}, options);
      if (!samples.not_finite.empty()) {
        return absl::OutOfRangeError(absl::StrCat(samples.not_finite,
                                                  " (NaN or infinite); do the weights hold such "
                                                  "numbers, or do they overflow in --dtype?"));
      }
      for (size_t i = 0; i < samples.pictures.size(); ++i) {
        TITAN_RETURN_IF_ERROR(storage::atomic_write(storage::posix_files(), paths[first + i], samples.pictures[i].png));
        made(first + i, paths[first + i]);
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace titan::tools
