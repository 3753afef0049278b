#include "common/plan/encoders/config.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/keys.h"

namespace titan::encoders {
namespace {

using hf_config::Keys;
using nlohmann::json;

constexpr int64_t kMaxConfigBytes = int64_t{1} << 24;
constexpr int64_t kMaxLevels = 16;

std::string text_at(const json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

// Returns the class that a configuration names: transformers' "architectures", or diffusers' "_class_name".
std::string class_of(const json& config) {
  const auto names = config.find("architectures");
  if (names != config.end() && names->is_array() && !names->empty() && names->front().is_string()) {
    return names->front().get<std::string>();
  }
  return text_at(config, "_class_name");
}

absl::Status other_model(const json& config, const std::string& expected) {
  const std::string name = class_of(config), type = text_at(config, "model_type");
  if (name.empty() && type.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: it names no model (model_type, architectures), expected ", expected));
  }
  return absl::InvalidArgumentError(absl::StrCat("config.json: this is a ", name.empty() ? type : name, " model",
                                                 name.empty() || type.empty() ? "" : " of type " + type, ", expected ",
                                                 expected));
}

// The names of activation functions in transformers.
constexpr std::pair<const char*, Activation> kActivations[] = {
    {"relu", Activation::kRelu},           {"gelu", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},   {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"silu", Activation::kSilu},           {"swish", Activation::kSilu},
    {"quick_gelu", Activation::kQuickGelu}};

std::optional<Activation> activation_named(const std::string& name) {
  for (const auto& [known, activation] : kActivations) {
    if (name == known) return activation;
  }
  return std::nullopt;
}

void take_activation(Keys& keys, const char* key, const std::string& name, Activation& into) {
  const auto found = activation_named(name);
  if (!found) return keys.refuse(key, "relu, gelu, gelu_new, silu or quick_gelu");
  into = *found;
}

// "gated-gelu" is GELU by tanh, "gelu" alone is not: transformers keeps what T5 v1.1 was trained with. A file may
// override what follows from this name.
void take_t5_feed_forward(Keys& keys, T5Options& options) {
  std::string name;
  keys.take("feed_forward_proj", name);
  if (name.empty()) return keys.refuse("feed_forward_proj", "a text such as gated-gelu");
  options.gated = absl::StartsWith(name, "gated-");
  std::string activation = options.gated ? name.substr(6) : name;
  if (name == "gated-gelu") activation = "gelu_new";
  const char* key = keys.has("dense_act_fn") ? "dense_act_fn" : "feed_forward_proj";
  keys.take("dense_act_fn", activation);
  keys.take("is_gated_act", options.gated);
  take_activation(keys, key, activation, options.activation);
}

// The defaults of transformers' CLIPTextConfig. A CLIPConfig's file leaves them out of its text_config.
const json& clip_text_defaults() {
  static const json defaults = {{"vocab_size", 49408},        {"hidden_size", 512},
                                {"intermediate_size", 2048},  {"num_hidden_layers", 12},
                                {"num_attention_heads", 8},   {"max_position_embeddings", 77},
                                {"hidden_act", "quick_gelu"}, {"layer_norm_eps", 1e-5}};
  return defaults;
}

absl::StatusOr<json> text_part(const json& config) {
  constexpr char kExpected[] = "CLIPTextModel or CLIPModel";
  const std::string type = text_at(config, "model_type"), name = class_of(config);
  if (type == "clip_text_model" || (type.empty() && absl::StartsWith(name, "CLIPTextModel"))) return config;
  if (type != "clip" && (!type.empty() || name != "CLIPModel")) return other_model(config, kExpected);
  const auto part = config.find("text_config");
  if (part == config.end() || !part->is_object()) {
    return absl::InvalidArgumentError("config.json: text_config is missing, which a CLIPModel has");
  }
  json whole = clip_text_defaults();
  whole.update(*part);
  return whole;
}

// Checks a list of block types, of which the autoencoder has only one kind.
void expect_blocks(Keys& keys, const char* key, const char* only, size_t levels) {
  const json there = keys.at(key);
  if (there != json(std::vector<std::string>(levels, only))) {
    keys.refuse(key, absl::StrCat("a list of ", levels, " times ", only));
  }
}

void take_channels(Keys& keys, AutoencoderOptions& options) {
  const json there = keys.at("block_out_channels");
  const auto good = [&](const json& number) {
    return number.is_number_integer() && number > 0 && number < (1 << 20) &&
           number.get<int64_t>() % std::max<int64_t>(options.norm_groups, 1) == 0;
  };
  if (!there.is_array() || there.empty() || there.size() > kMaxLevels ||
      !std::all_of(there.begin(), there.end(), good)) {
    return keys.refuse("block_out_channels", absl::StrCat("a list of multiples of norm_num_groups (",
                                                          options.norm_groups, "), one for each level,"));
  }
  options.channels = there.get<std::vector<int64_t>>();
  expect_blocks(keys, "down_block_types", "DownEncoderBlock2D", there.size());
  expect_blocks(keys, "up_block_types", "UpDecoderBlock2D", there.size());
}

// Refuses a nonempty setting.
void expect_none(Keys& keys, const char* key) {
  if (keys.has(key)) keys.refuse(key, "only null");
}

// A missing key counts as true.
void expect_false(Keys& keys, const char* key) {
  bool there = true;
  keys.take(key, there);
  if (there) keys.refuse(key, "only false");
}

}  // namespace

absl::StatusOr<json> read_config(storage::Files& files, const std::string& folder) {
  const std::string path = storage::join_path(folder, "config.json");
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, kMaxConfigBytes));
  json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  return config;
}

absl::StatusOr<T5Options> t5_options(const json& config) {
  constexpr char kExpected[] = "T5EncoderModel or T5ForConditionalGeneration";
  const std::string type = text_at(config, "model_type");
  if (type != "t5" && (!type.empty() || !absl::StartsWith(class_of(config), "T5"))) {
    return other_model(config, kExpected);
  }
  Keys keys(config);
  T5Options options;
  keys.need("vocab_size", options.vocab_size);
  keys.need("d_model", options.dim);
  keys.need("num_layers", options.num_layers);
  keys.need("num_heads", options.num_heads);
  keys.need("d_kv", options.head_dim);
  keys.need("d_ff", options.ffn_hidden);
  keys.take("relative_attention_num_buckets", options.num_buckets);
  keys.take("relative_attention_max_distance", options.max_distance);
  keys.take("initializer_factor", options.init_factor);
  if (keys.has("layer_norm_epsilon")) keys.need("layer_norm_epsilon", options.norm_eps);
  take_t5_feed_forward(keys, options);
  if (options.num_buckets < 4) keys.refuse("relative_attention_num_buckets", "an integer of at least 4");
  if (options.max_distance <= options.num_buckets / 4) {
    keys.refuse("relative_attention_max_distance", "more than a fourth of relative_attention_num_buckets");
  }
  TITAN_RETURN_IF_ERROR(keys.status());
  return options;
}

absl::StatusOr<ClipTextOptions> clip_text_options(const json& config) {
  TITAN_ASSIGN_OR_RETURN(json part, text_part(config));
  Keys keys(std::move(part), config.contains("text_config") ? "text_config." : "");
  ClipTextOptions options;
  std::string activation = "quick_gelu";
  keys.need("vocab_size", options.vocab_size);
  keys.need("hidden_size", options.dim);
  keys.need("num_hidden_layers", options.num_layers);
  keys.need("num_attention_heads", options.num_heads);
  keys.need("intermediate_size", options.ffn_hidden);
  keys.need("max_position_embeddings", options.max_tokens);
  keys.need("layer_norm_eps", options.norm_eps);
  keys.take("eos_token_id", options.eos_token);
  keys.take("initializer_factor", options.init_factor);
  keys.take("hidden_act", activation);
  take_activation(keys, "hidden_act", activation, options.activation);
  if (options.num_heads > 0 && options.dim % options.num_heads != 0) {
    keys.refuse("num_attention_heads", absl::StrCat("a divisor of hidden_size (", options.dim, ")"));
  }
  TITAN_RETURN_IF_ERROR(keys.status());
  return options;
}

absl::StatusOr<AutoencoderOptions> autoencoder_options(const json& config) {
  if (class_of(config) != "AutoencoderKL") return other_model(config, "AutoencoderKL");
  Keys keys(config);
  AutoencoderOptions options;
  options.blocks_per_level = 1;
  options.scale = 0.18215;
  options.shift = 0;
  keys.need("latent_channels", options.latent_channels);
  keys.take("in_channels", options.image_channels);
  keys.expect("out_channels", options.image_channels);
  if (keys.has("norm_num_groups")) keys.need("norm_num_groups", options.norm_groups);
  if (keys.has("layers_per_block")) keys.need("layers_per_block", options.blocks_per_level);
  if (keys.has("scaling_factor")) keys.need("scaling_factor", options.scale);
  keys.take("shift_factor", options.shift);
  take_channels(keys, options);
  expect_false(keys, "use_quant_conv");
  expect_false(keys, "use_post_quant_conv");
  keys.expect("mid_block_add_attention", true);
  keys.expect("act_fn", std::string("silu"));
  expect_none(keys, "latents_mean");
  expect_none(keys, "latents_std");
  TITAN_RETURN_IF_ERROR(keys.status());
  return options;
}

}  // namespace titan::encoders
