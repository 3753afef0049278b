#include "common/plan/config/image_models.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/hub/names.h"
#include "common/io/s3/location.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/trained_model.h"

namespace titan::config {

bool is_image_format(std::string_view format) {
  return format == "webdataset" || format == "image_folder" || format == "parquet_images" || format == "encodings";
}

bool is_image_dataset(std::string_view dataset) {
  return std::find(std::begin(kImageDatasets), std::end(kImageDatasets), dataset) != std::end(kImageDatasets);
}

std::string hub_path_of_images(std::string_view dataset) {
  if (dataset == "cc12m-wds" || dataset == "cc12m") return "hf://datasets/pixparse/cc12m-wds";
  if (dataset == "coco-validation") return "hf://datasets/howard-hou/COCO-Text@main/data/validation-*";
  return "";
}

bool is_repository_name(const std::string& encoder) {
  constexpr std::string_view kPathStarts = "/.~$";
  if (encoder.empty() || kPathStarts.find(encoder.front()) != kPathStarts.npos) return false;
  return std::count(encoder.begin(), encoder.end(), '/') == 1 && hub::parse_repo(hub::RepoKind::kModel, encoder).ok();
}

bool reads_encodings(const JobConfig& config) {
  return config.training.dataloader.format == "encodings" ||
         (config.validation.enable && config.validation.dataloader.format == "encodings");
}

bool uses_encoders(const JobConfig& config) {
  const ValidationSection& validation = config.validation;
  if (kind_of(config.model) != ModelKind::kTextToImage) return false;
  if (config.training.dataloader.format != "encodings") return true;
  return validation.enable && (validation.dataloader.format != "encodings" || validation.save_img_count != 0);
}

std::string encoder_dtype(const JobConfig& config) {
  if (config.training.dtype == "float64") return "float64";
  const std::string& type =
      config.encoder.dtype == "auto" ? config.training.mixed_precision_param : config.encoder.dtype;
  return type == "bfloat16" ? "bfloat16" : "float32";
}

bool names_autoencoder_repository(const std::string& path) {
  return !absl::EndsWith(path, ".safetensors") && is_repository_name(path);
}

std::vector<std::string> image_warnings(const JobConfig& config) {
  const ValidationSection& validation = config.validation;
  const bool guides = validation.enable && validation.enable_classifier_free_guidance && validation.save_img_count != 0;
  if (kind_of(config.model) != ModelKind::kTextToImage || !guides) return {};
  if (config.training.classifier_free_guidance_prob > 0) return {};
  return {
      "validation.enable_classifier_free_guidance: guidance needs the model's predictions without a caption, which "
      "this job does not train: training.classifier_free_guidance_prob is 0"};
}

namespace {

constexpr char kLeaveOut[] = "leave it out", kInterleaved[] = "obelics";

std::string model_and_kind(const ModelSection& model) {
  return absl::StrCat(model.name, " is ", std::string(name(kind_of(model))));
}

// Refuses a setting that would change what the user gets and that this kind of model does not have.
void refuse_text_settings(Checker& check, const std::string& section, const DataLoaderSection& settings) {
  const std::string loader = absl::StrCat(section, ".dataloader.");
  const std::string& model = check.config().model.name;
  if (!settings.messages_key.empty()) {
    check.fail(loader + "messages_key", settings.messages_key,
               absl::StrCat("conversations are for language models, and ", model_and_kind(check.config().model)),
               kLeaveOut);
  }
  if (settings.packing != "concatenate") {
    check.fail(loader + "packing", settings.packing, absl::StrCat("packs texts, and ", model, " learns from images"),
               kind_of(check.config().model) == ModelKind::kVisionLanguage
                   ? "leave it out, and set data.packing_buffer_size"
                   : kLeaveOut);
  }
  if (settings.shuffle == "rows") {
    check.fail(loader + "shuffle", settings.shuffle,
               absl::StrCat("shuffles rows of tokens, and ", model, " learns from images"),
               "set it to \"documents\", which shuffles samples");
  }
  if (!settings.sources.empty()) {
    check.fail(loader + "sources", absl::StrCat(settings.sources.size(), " sources"),
               "several datasets of images in one stream: not supported yet",
               absl::StrCat("set ", section, ".dataset_path to one dataset"));
  }
}

void check_image_data(Checker& check, const std::string& section, const std::string& dataset,
                      const std::optional<std::string>& path, const DataLoaderSection& settings) {
  const ModelSection& model = check.config().model;
  const std::string own = absl::StrCat("set ", section, ".dataset_path to a folder of images");
  const bool of_library = !is_builtin_dataset(dataset) && !is_image_dataset(dataset);
  if (of_library || (!path.has_value() && !is_image_dataset(dataset))) {
    check.fail(section + ".dataset", dataset, absl::StrCat("holds texts, but ", model.name, " learns from images"),
               of_library ? absl::StrCat("leave it out, and ", own)
                          : absl::StrCat(own, ", or ", section, ".dataset to cc12m-wds or coco-validation"));
  } else if (dataset == kInterleaved && kind_of(model) == ModelKind::kTextToImage) {
    check.fail(section + ".dataset", dataset,
               absl::StrCat("has samples of several texts and images, but ", model.name, " learns from captions"),
               absl::StrCat(own, ", or ", section, ".dataset to cc12m-wds or coco-validation"));
  } else if (dataset == kInterleaved && !path.has_value()) {
    check.fail(section + ".dataset", dataset, "has only the addresses of its images, which training does not download",
               absl::StrCat("set ", section, ".dataset_path to files that have its images"));
  } else if (!path.has_value() && hub_path_of_images(dataset).empty() && !is_bundled_dataset(dataset)) {
    check.fail(section + ".dataset", dataset, "is a folder of a torchtitan checkout, which Titan does not have",
               absl::StrCat("set ", section, ".dataset_path to its tests/assets/cc12m_test, or to your own images"));
  }
  const std::string key = section + ".dataloader.format";
  if (settings.format != "auto" && !is_image_format(settings.format)) {
    check.fail(
        key, settings.format, absl::StrCat("holds texts, but ", model.name, " learns from images"),
        settings.format == "parquet" ? "use parquet_images" : "use auto, webdataset, image_folder or parquet_images");
  } else if (settings.format == "encodings" && kind_of(model) != ModelKind::kTextToImage) {
    check.fail(key, settings.format, absl::StrCat("holds encodings of flux's encoders, but the model is ", model.name),
               "use auto, webdataset, image_folder or parquet_images");
  }
  if (settings.format == "encodings" && (!path.has_value() || hub::is_hub_path(*path))) {
    check.fail(key, settings.format, "stored encodings are read from a folder or an object store",
               absl::StrCat("set ", section, ".dataset_path to the folder that titan-data encode-images wrote"));
  }
  refuse_text_settings(check, section, settings);
}

void check_text_data(Checker& check, const std::string& section, const std::string& dataset,
                     const DataLoaderSection& settings) {
  const JobConfig& config = check.config();
  // A library may have a dataset of texts with this name.
  if (is_image_dataset(dataset) && config.experimental.custom_import.empty() && settings.sources.empty()) {
    check.fail(section + ".dataset", dataset, absl::StrCat("holds images, but ", model_and_kind(config.model)),
               absl::StrCat("set model.name = \"flux\", or ", section, ".dataset to c4, c4_test or c4_validation"));
  }
  if (is_image_format(settings.format)) {
    check.fail(section + ".dataloader.format", settings.format,
               absl::StrCat("holds images, but ", model_and_kind(config.model)),
               "use auto, jsonl, text, parquet, megatron or titan");
  }
}

// Returns "use 240 or 256" for a number that is not a multiple.
std::string nearest_multiples(std::int64_t value, std::int64_t step) {
  const std::int64_t below = value / step * step;
  return below > 0 ? absl::StrCat("use ", below, " or ", below + step) : absl::StrCat("use ", step);
}

// Returns the sizes next to `size` whose images have a number of tokens that the degree divides.
std::string nearest_sizes(std::int64_t size, std::int64_t degree) {
  const auto divides = [&](std::int64_t side) { return side * side % degree == 0; };
  std::int64_t below = size / kPixelsPerToken, above = below + 1;
  while (below > 0 && !divides(below)) --below;
  while (!divides(above)) ++above;
  return absl::StrCat("use ", below > 0 ? absl::StrCat(below * kPixelsPerToken, " or ") : "", above * kPixelsPerToken);
}

// The ranks of a context each hold an equal part of the image's tokens and of the caption's.
void check_contexts(Checker& check) {
  const JobConfig& config = check.config();
  const std::int64_t degree = config.parallelism.context_parallel_degree;
  const std::int64_t size = config.training.img_size, length = config.encoder.max_t5_encoding_len;
  if (degree <= 1) return;
  const std::string undivided = absl::StrCat("which parallelism.context_parallel_degree ", degree, " does not divide");
  const std::int64_t tokens = image_tokens(config);
  if (size % kPixelsPerToken == 0 && tokens % degree != 0) {
    check.fail("training.img_size", size, absl::StrCat("makes ", tokens, " tokens of an image, ", undivided),
               nearest_sizes(size, degree));
  }
  if (length % degree != 0) {
    check.fail("encoder.max_t5_encoding_len", length, absl::StrCat("is the number of a caption's tokens, ", undivided),
               nearest_multiples(length, degree));
  }
}

void check_encoder_names(Checker& check) {
  const EncoderSection& encoder = check.config().encoder;
  const auto look = [&](const std::string& key, const std::string& value, const char* remedy) {
    if (value.empty()) check.fail(key, "\"\"", "must not be empty", remedy);
    if (hub::is_hub_path(value)) {
      check.fail(key, value, "is an address on a hub", "write the repository's name, such as google/t5-v1_1-xxl");
    } else if (s3::is_location(value)) {
      check.fail(key, value, "cannot be in an object store", "copy it to a folder that all nodes see");
    }
  };
  look("encoder.t5_encoder", encoder.t5_encoder, "set it to a folder, or to google/t5-v1_1-xxl");
  look("encoder.clip_encoder", encoder.clip_encoder, "set it to a folder, or to openai/clip-vit-large-patch14");
  look("encoder.autoencoder_path", encoder.autoencoder_path,
       "set it to the file ae.safetensors of FLUX.1, or to black-forest-labs/FLUX.1-schnell");
}

// Limit of a microbatch's pixel values: 64 GiB of float32.
constexpr std::int64_t kMostValues = std::int64_t{1} << 34;

void check_image_sizes(Checker& check) {
  const JobConfig& config = check.config();
  const auto whole_tokens = [&](const std::string& key, std::int64_t size) {
    if (size % kPixelsPerToken == 0) return;
    check.fail(key, size, absl::StrCat("is not a multiple of ", kPixelsPerToken, ", the width of a token"),
               nearest_multiples(size, kPixelsPerToken));
  };
  const std::int64_t size = config.training.img_size;
  whole_tokens("training.img_size", size);
  if (config.inference.img_size) whole_tokens("inference.img_size", *config.inference.img_size);
  const std::int64_t values = config.training.local_batch_size * 3 * size * size;
  if (values <= kMostValues) return;
  check.fail("training.local_batch_size", config.training.local_batch_size,
             absl::StrCat("images of ", size, " x ", size, " pixels are ", values >> 28,
                          " GiB in float32, more than the limit of 64"),
             "lower it; training.global_batch_size sets the images of a step");
}

void check_patches(Checker& check) {
  const DataSection& data = check.config().data;
  double values = 3;
  for (const std::int64_t factor :
       {data.max_images_per_batch, data.max_patches_per_image, data.patch_size, data.patch_size}) {
    values *= static_cast<double>(factor);
  }
  if (values <= static_cast<double>(kMostValues)) return;
  check.fail("data.max_images_per_batch", data.max_images_per_batch,
             absl::StrCat("images of ", data.max_patches_per_image, " patches of ", data.patch_size, " x ",
                          data.patch_size, " pixels are more than the limit of 64 GiB in float32"),
             "lower it, or data.max_patches_per_image");
}

// The tower decides the size of patches, and which of them become one token.
void check_tower(Checker& check) {
  const ModelSection& model = check.config().model;
  const DataSection& data = check.config().data;
  const absl::StatusOr<models::ModelSpec> spec = resolve_model(model);
  if (!spec.ok() || !spec->reads_images()) return;
  const std::string tower = absl::StrCat("the vision tower of ", model.name, " ", model.flavor);
  const std::int64_t size = spec->qwen3_vl ? spec->qwen3_vl->vision.patch_size : spec->vision->patch_size;
  if (data.patch_size != size) {
    check.fail("data.patch_size", data.patch_size, absl::StrCat("is not the ", size, " pixels of ", tower),
               absl::StrCat("set data.patch_size = ", size));
  }
  const std::int64_t merge = spec->qwen3_vl ? spec->qwen3_vl->vision.merge : 1;
  if (data.spatial_merge_size != merge) {
    check.fail("data.spatial_merge_size", data.spatial_merge_size,
               absl::StrCat("is not ", merge, ", the width of the squares of patches that ", tower, " makes one token"),
               absl::StrCat("set data.spatial_merge_size = ", merge));
  }
  if (data.max_patches_per_image < merge * merge) {
    check.fail("data.max_patches_per_image", data.max_patches_per_image,
               absl::StrCat("is less than the ", merge * merge, " patches of one token of ", tower),
               absl::StrCat("set it to at least ", merge * merge));
  }
}

// Refuses features of language models that a model with a vision tower does not have.
void refuse_for_vlm(Checker& check) {
  const JobConfig& config = check.config();
  const absl::StatusOr<models::ModelSpec> spec = resolve_model(config.model);
  if (config.checkpoint.initial_load_vision_path && spec.ok() && !spec->vision) {
    check.fail("checkpoint.initial_load_vision_path", *config.checkpoint.initial_load_vision_path,
               absl::StrCat("holds a tower of SigLIP 2, which ", config.model.name, " does not have"), kLeaveOut);
  }
  if (!config.model.converters.empty()) {
    check.fail("model.converters", absl::StrJoin(config.model.converters, ", "),
               absl::StrCat("not supported yet for ", config.model.name), "leave them out");
  }
  if (!config.validation.sample_prompts.empty()) {
    check.fail("validation.sample_prompts", absl::StrCat(config.validation.sample_prompts.size(), " prompts"),
               absl::StrCat("not supported yet for ", config.model.name), "leave them out");
  }
}

// Refuses features of language models that flux has not, in place of the checks that look at a decoder's layers.
void refuse_for_flux(Checker& check) {
  const JobConfig& config = check.config();
  if (!config.model.converters.empty()) {
    check.fail("model.converters", absl::StrJoin(config.model.converters, ", "),
               "applies to language models: not supported yet for flux", "leave them out");
  }
  if (config.model.attn_mask_type) {
    check.fail("model.attn_mask_type", *config.model.attn_mask_type,
               "does not apply to flux, whose tokens all attend to each other", kLeaveOut);
  }
  if (config.optimizer.qk_clip != 0) {
    check.fail("optimizer.qk_clip", config.optimizer.qk_clip,
               "has no effect on flux, which norms every query and key head", kLeaveOut);
  }
  if (config.validation.enable && config.validation.save_img_count != 0 &&
      config.parallelism.pipeline_parallel_degree > 1) {
    check.fail("validation.save_img_count", config.validation.save_img_count,
               "images during validation need the whole model on each rank: not supported yet with a pipeline",
               "set it to 0");
  }
  if (!config.validation.sample_prompts.empty()) {
    check.fail("validation.sample_prompts", absl::StrCat(config.validation.sample_prompts.size(), " prompts"),
               "continues texts, and flux generates images", "leave them out");
  }
}

}  // namespace

void check_images(Checker& check) {
  const JobConfig& config = check.config();
  const TrainingSection& training = config.training;
  const ValidationSection& validation = config.validation;
  if (!learns_from_images(config.model)) {
    check_text_data(check, "training", training.dataset, training.dataloader);
    if (validation.enable) check_text_data(check, "validation", validation.dataset, validation.dataloader);
    return;
  }
  check_image_data(check, "training", training.dataset, training.dataset_path, training.dataloader);
  if (validation.enable)
    check_image_data(check, "validation", validation.dataset, validation.dataset_path, validation.dataloader);
  if (kind_of(config.model) == ModelKind::kVisionLanguage) {
    check_patches(check);
    check_tower(check);
    return refuse_for_vlm(check);
  }
  check_image_sizes(check);
  check_contexts(check);
  if (uses_encoders(config)) check_encoder_names(check);
  refuse_for_flux(check);
}

}  // namespace titan::config
