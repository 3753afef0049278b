// Keys of models that learn from images: flux (text-to-image), vlm and qwen3_vl (vision-language).
#include "common/plan/config/fields.h"

namespace titan::config {
namespace {

// Limits far above any use, beyond which a number is a typing error and products could leave 64 bits.
constexpr double kMostPixels = 8192;  // Width and height of an image.
constexpr double kMostSamples = 1 << 30;

}  // namespace

std::vector<Field> image_fields_of(TrainingSection& c) {
  return {
      Field("classifier_free_guidance_prob", c.classifier_free_guidance_prob,
            "Flux: probability that a sample's caption is empty, drawn for each text encoder separately; with 0.447 a "
            "fifth of the samples has no text at all")
          .between(0, 1),
      Field("guidance_scale", c.guidance_scale,
            "Flux: strength of the guidance that a model with the guidance's layers reads while it trains (FLUX.1-dev)")
          .between(0, 1000),
      Field("img_size", c.img_size,
            "Flux: width and height to which images are resized and cropped, a multiple of 16; smaller images are "
            "skipped")
          .in("pixels")
          .between(16, kMostPixels),
      Field(
          "test_mode", c.test_mode,
          "Flux: encoders with random weights and the tokenizer of model.hf_assets_path, for tests without downloads"),
  };
}

std::vector<Field> image_fields_of(DataLoaderSection& c) {
  return {
      Field("max_bad_samples", c.max_bad_samples,
            "More samples in a pass whose image or caption cannot be used fail the job; -1: any number may be skipped")
          .in("samples")
          .at_least(0)
          .or_value(-1),
      Field(
          "image_key", c.image_key,
          "Name of a sample's image: ending of the file in a tar, or column of Parquet; empty: jpg, jpeg, png, webp or "
          "image"),
      Field("caption_key", c.caption_key,
            "Name of a sample's caption: ending of the file, or column of Parquet; empty: txt, caption or text"),
      Field("decode_threads", c.decode_threads, "Threads of a rank that decode and resize images")
          .in("threads")
          .between(1, 256),
  };
}

std::vector<Field> image_fields_of(ValidationSection& c) {
  return {
      Field("enable_classifier_free_guidance", c.enable_classifier_free_guidance,
            "Flux: generate images with classifier-free guidance"),
      Field("classifier_free_guidance_scale", c.classifier_free_guidance_scale,
            "Flux: how far guidance goes from the prediction without a caption towards, and above 1 beyond, the one "
            "with it")
          .at_least(0),
      Field("denoising_steps", c.denoising_steps, "Flux: steps from noise to an image").in("steps").between(1, 100'000),
      Field("eval_freq", c.eval_freq, "Steps between two validations")
          .at_least(1)
          .without_effect("validation.freq counts, in torchtitan too"),
      Field("save_img_count", c.save_img_count,
            "Flux: images that each validation generates, for the captions of its first samples; -1: for all")
          .in("images")
          .at_least(0)
          .or_value(-1),
      Field("save_img_folder", c.save_img_folder, "Flux: folder of these images under dump_folder"),
      Field("all_timesteps", c.all_timesteps,
            "Flux: measure the loss of each sample at all eight timesteps 1/16, 3/16, ..., 15/16, not only at one of "
            "them, round-robin"),
  };
}

std::vector<Field> fields_of(EncoderSection& c) {
  return {
      Field("t5_encoder", c.t5_encoder,
            "T5 that encodes captions: a folder, or the name of a repository that titanctl assets get has downloaded; "
            "titan/t5-tiny, titan/clip-tiny and titan/autoencoder-tiny are in the installation, for examples"),
      Field("clip_encoder", c.clip_encoder, "CLIP that encodes captions: a folder or a name, likewise"),
      Field("autoencoder_path", c.autoencoder_path,
            "Autoencoder: the file ae.safetensors, a folder with config.json and weights as diffusers writes them, or "
            "the "
            "name of a repository that titanctl assets get has downloaded")
          .is_path(),
      Field("max_t5_encoding_len", c.max_t5_encoding_len, "Length of T5's encodings: captions are cut or padded to it")
          .in("tokens")
          .between(1, 1 << 16),
      Field("dtype", c.dtype, "Type in which the encoders compute; auto: training.mixed_precision_param")
          .one_of({"auto", "float32", "bfloat16"}),
      Field("t5_weights", c.t5_weights,
            "How T5's matrices are kept: in the encoders' type, or as 8-bit integers with a scale for each row")
          .one_of({"dtype", "int8"}),
      Field("shard_t5", c.shard_t5, "Ranks that share one copy of the model (FSDP) also share one of T5"),
  };
}

std::vector<Field> fields_of(DataSection& c) {
  return {
      Field("max_images_per_batch", c.max_images_per_batch,
            "Images in the rows of a microbatch; a row that would exceed them begins the next one")
          .in("images")
          .between(1, 1 << 20),
      Field("max_patches_per_image", c.max_patches_per_image, "Larger images are resized to this many patches")
          .in("patches")
          .between(1, 1 << 20),
      Field("patch_size", c.patch_size, "Width and height of a patch").in("pixels").between(1, 1024),
      Field("spatial_merge_size", c.spatial_merge_size,
            "Width and height of the square of patches that becomes one visual token: 2 for qwen3_vl, 1 for vlm")
          .in("patches")
          .between(1, 64),
      Field("packing_buffer_size", c.packing_buffer_size,
            "Samples among which some are chosen that fill a row together; 0: one sample a row")
          .in("samples")
          .between(0, 1 << 20),
  };
}

std::vector<Field> fields_of(InferenceSection& c) {
  return {
      Field("save_img_folder", c.save_img_folder, "Folder of the images under dump_folder"),
      Field("prompts_path", c.prompts_path, "File of prompts, one on each line").is_path(),
      Field("local_batch_size", c.local_batch_size, "Prompts that a rank processes at once")
          .in("prompts")
          .between(1, kMostSamples),
      Field("img_size", c.img_size, "Width and height of the images, a multiple of 16; training.img_size when not set")
          .in("pixels")
          .between(16, kMostPixels),
  };
}

}  // namespace titan::config
