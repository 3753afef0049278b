#include "worker/rank/model/hf_names.h"

#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/sizes.h"
#include "common/plan/models/spec_checks.h"

namespace titan::model {
namespace {

nlohmann::json scaling_of(const models::LlamaRopeScaling& scaling) {
  if (scaling.original_seq_len == 0) return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_seq_len}};
}

// Scaled cosines and sines are transformers' default. DeepSeek's form does not scale them.
nlohmann::json scaling_of(const models::YarnScaling& yarn, bool latent) {
  nlohmann::json table = {{"rope_type", "yarn"},
                          {"factor", yarn.factor},
                          {"beta_fast", yarn.beta_fast},
                          {"beta_slow", yarn.beta_slow},
                          {"original_max_position_embeddings", yarn.original_seq_len}};
  if (yarn.scales_cos_sin) {
    table["truncate"] = yarn.rounds_bounds;
    if (yarn.cos_sin_factor > 0) table["attention_factor"] = yarn.cos_sin_factor;
  } else if (latent && yarn.mscale != 0) {
    table["mscale"] = table["mscale_all_dim"] = yarn.mscale;
  } else {
    table["attention_factor"] = 1.0;
  }
  return table;
}

}  // namespace

void add_embedding_and_norms(HfNames& names, const std::string& prefix) {
  names.push_back({"tok_embeddings.weight", prefix + "embed_tokens.weight"});
  names.push_back({"norm.weight", prefix + "norm.weight"});
  names.push_back({"layers.{}.attention_norm.weight", prefix + "layers.{}.input_layernorm.weight"});
  names.push_back({"layers.{}.ffn_norm.weight", prefix + "layers.{}.post_attention_layernorm.weight"});
}

void add_attention_projections(HfNames& names, const std::string& prefix, bool bias) {
  for (const char* letter : {"q", "k", "v", "o"}) {
    const std::string fqn = std::string("layers.{}.attention.w") + letter;
    const std::string hf = prefix + "layers.{}.self_attn." + letter + "_proj";
    names.push_back({fqn + ".weight", hf + ".weight"});
    if (bias) names.push_back({fqn + ".bias", hf + ".bias"});
  }
}

void add_swiglu(HfNames& names, const std::string& fqn, const std::string& hf) {
  names.push_back({fqn + ".w1.weight", hf + ".gate_proj.weight"});
  names.push_back({fqn + ".w2.weight", hf + ".down_proj.weight"});
  names.push_back({fqn + ".w3.weight", hf + ".up_proj.weight"});
}

void add_experts(HfNames& names, const std::string& fqn, const std::string& hf) {
  names.push_back({fqn + ".w1", hf + ".{}.gate_proj.weight", HfForm::kEachExpert});
  names.push_back({fqn + ".w2", hf + ".{}.down_proj.weight", HfForm::kEachExpert});
  names.push_back({fqn + ".w3", hf + ".{}.up_proj.weight", HfForm::kEachExpert});
}

namespace {

using models::NormPlacement;

void add_layer_norms(HfNames& names, const models::ModelSpec& spec, const DecoderNames& own) {
  const bool both = spec.norm_placement == NormPlacement::kBoth;
  const auto add = [&](const char* fqn, const char* chosen, const char* usual) {
    names.push_back({absl::StrCat("layers.{}.", fqn, ".weight"),
                     absl::StrCat(own.prefix, "layers.{}.", chosen != nullptr ? chosen : usual, ".weight")});
  };
  if (spec.norm_placement != NormPlacement::kPost) {
    add("attention_norm", own.attention_norm, "input_layernorm");
    add("ffn_norm", own.ffn_norm, both ? "pre_feedforward_layernorm" : "post_attention_layernorm");
  }
  if (spec.norm_placement == NormPlacement::kPre) return;
  add("attention_post_norm", own.attention_post_norm, "post_attention_layernorm");
  add("ffn_post_norm", own.ffn_post_norm, "post_feedforward_layernorm");
}

// Adds rows of a fused projection of `rows` outputs in all; `parts` are the parameters in its order.
struct FusedPart {
  const char* fqn;
  int64_t rows;
};
void add_fused(HfNames& names, const std::string& hf, const std::vector<FusedPart>& parts, bool bias) {
  int64_t first = 0, total = 0;
  for (const FusedPart& part : parts) total += part.rows;
  for (const FusedPart& part : parts) {
    for (const char* kind : {"weight", "bias"}) {
      if (kind[0] == 'b' && !bias) continue;
      names.push_back({.fqn = absl::StrCat(part.fqn, ".", kind),
                       .hf = absl::StrCat(hf, ".", kind),
                       .form = HfForm::kRows,
                       .first_row = first,
                       .total_rows = total});
    }
    first += part.rows;
  }
}

void add_attention(HfNames& names, const models::ModelSpec& spec, const DecoderNames& own) {
  const std::string attention = own.prefix + "layers.{}.self_attn.";
  const bool permuted = spec.rope == models::RopeStyle::kInterleaved && !own.pairs_neighbours;
  const auto add = [&](const char* letter, HfForm form, bool bias) {
    const std::string fqn = absl::StrCat("layers.{}.attention.w", letter, "."),
                      hf = absl::StrCat(attention, letter, "_proj.");
    names.push_back({fqn + "weight", hf + "weight", form});
    if (bias) names.push_back({fqn + "bias", hf + "bias", form});
  };
  if (own.fused_qkv) {
    const int64_t queries = spec.n_heads * spec.head_dim, keys = spec.n_kv_heads * spec.head_dim;
    add_fused(names, attention + "qkv_proj",
              {{"layers.{}.attention.wq", queries}, {"layers.{}.attention.wk", keys}, {"layers.{}.attention.wv", keys}},
              spec.attention_bias);
  } else {
    add("q", permuted ? HfForm::kQueryHeads : HfForm::kSame, spec.attention_bias);
    add("k", permuted ? HfForm::kKeyHeads : HfForm::kSame, spec.attention_bias);
    add("v", HfForm::kSame, spec.attention_bias);
  }
  add("o", HfForm::kSame, spec.attention_bias && spec.attention_out_bias);
  if (!spec.qk_norm) return;
  for (const char* norm : {"q_norm.weight", "k_norm.weight"})
    names.push_back({absl::StrCat("layers.{}.attention.", norm), attention + norm});
}

void add_dense(HfNames& names, const models::ModelSpec& spec, const DecoderNames& own) {
  const std::string fqn = "layers.{}.feed_forward", hf = own.prefix + "layers.{}.mlp";
  if (own.fused_gate_up) {
    add_fused(names, hf + ".gate_up_proj",
              {{"layers.{}.feed_forward.w1", spec.ffn_hidden}, {"layers.{}.feed_forward.w3", spec.ffn_hidden}},
              /*bias=*/false);
    names.push_back({fqn + ".w2.weight", hf + ".down_proj.weight"});
    return;
  }
  add_swiglu(names, fqn, hf);
  if (!spec.mlp_bias) return;
  names.push_back({fqn + ".w1.bias", hf + ".gate_proj.bias"});
  names.push_back({fqn + ".w2.bias", hf + ".down_proj.bias"});
  names.push_back({fqn + ".w3.bias", hf + ".up_proj.bias"});
}

void add_mixture(HfNames& names, const DecoderNames& own) {
  const std::string hf = absl::StrCat(own.prefix, "layers.{}.", own.moe, "."), fqn = "layers.{}.moe.";
  names.push_back(
      {fqn + "experts.w1", absl::StrCat(hf, "experts.{}.", own.expert_gate, ".weight"), HfForm::kEachExpert});
  names.push_back(
      {fqn + "experts.w2", absl::StrCat(hf, "experts.{}.", own.expert_down, ".weight"), HfForm::kEachExpert});
  names.push_back({fqn + "experts.w3", absl::StrCat(hf, "experts.{}.", own.expert_up, ".weight"), HfForm::kEachExpert});
  names.push_back({fqn + "router.gate.weight", hf + "gate.weight"});
  names.push_back({fqn + "expert_bias", "", HfForm::kNotStored});
}

}  // namespace

HfNames decoder_names(const models::ModelSpec& spec, const DecoderNames& own) {
  HfNames names = {{"tok_embeddings.weight", own.prefix + "embed_tokens.weight"},
                   {"norm.weight", own.prefix + "norm.weight"}};
  add_layer_norms(names, spec, own);
  add_attention(names, spec, own);
  if (spec.moe) {
    add_mixture(names, own);
  } else {
    add_dense(names, spec, own);
  }
  if (!spec.tied_embeddings) names.push_back({"output.weight", "lm_head.weight"});
  return names;
}

double partial_rotary_factor(const models::ModelSpec& spec) {
  if (spec.rotary_dim == 0) return 1;
  double factor = static_cast<double>(spec.rotary_dim) / static_cast<double>(spec.head_dim);
  while (static_cast<int64_t>(static_cast<double>(spec.head_dim) * factor) < spec.rotary_dim)
    factor = std::nextafter(factor, 1.0);
  return factor;
}

nlohmann::json query_pre_attn_scalar(const models::ModelSpec& spec) {
  if (spec.attention_scale == 0) return spec.head_dim;
  const double scalar = 1 / (spec.attention_scale * spec.attention_scale), whole = std::round(scalar);
  if (std::abs(scalar - whole) < 1e-9 * scalar) return static_cast<int64_t>(whole);
  return scalar;
}

nlohmann::json null_if_zero(double number) { return number == 0 ? nlohmann::json() : nlohmann::json(number); }
nlohmann::json null_if_zero(int64_t number) { return number == 0 ? nlohmann::json() : nlohmann::json(number); }

nlohmann::json layer_types(const models::ModelSpec& spec) {
  nlohmann::json types = nlohmann::json::array();
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    types.push_back(spec.layer_window(layer) > 0 ? "sliding_attention" : "full_attention");
  return types;
}

void add_optional_windows(const models::ModelSpec& spec, nlohmann::json& config) {
  config["use_sliding_window"] = spec.sliding_window > 0;
  if (spec.sliding_window == 0) return;
  config["sliding_window"] = spec.sliding_window;
  config["layer_types"] = layer_types(spec);
}

nlohmann::json common_config(const models::ModelSpec& spec, const std::string& architecture,
                             const std::string& model_type) {
  nlohmann::json config = {{"architectures", {architecture}},
                           {"model_type", model_type},
                           {"hidden_act", "silu"},
                           {"hidden_size", spec.dim},
                           {"num_hidden_layers", spec.n_layers},
                           {"num_attention_heads", spec.n_heads},
                           {"num_key_value_heads", spec.n_kv_heads},
                           {"head_dim", spec.head_dim},
                           {"vocab_size", spec.vocab_size},
                           {"max_position_embeddings", spec.max_seq_len},
                           {"rms_norm_eps", spec.norm_eps},
                           {"rope_theta", spec.rope_theta},
                           {"attention_bias", spec.attention_bias},
                           {"tie_word_embeddings", spec.tied_embeddings}};
  if (spec.rope_scaling) config["rope_scaling"] = scaling_of(*spec.rope_scaling);
  if (spec.yarn) config["rope_scaling"] = scaling_of(*spec.yarn, spec.attention == models::Attention::kLatent);
  return config;
}

nlohmann::json decoder_config(const models::ModelSpec& spec, const std::string& architecture,
                              const std::string& model_type) {
  nlohmann::json config = common_config(spec, architecture, model_type);
  config["intermediate_size"] = spec.moe ? spec.moe->hidden : spec.ffn_hidden;
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[token] = nullptr;
  return config;
}

namespace {

using checkpoint::HfLayout;

// Splits "layers.12.rest" into {"layers.{}.rest", "12"}. Other names have no layer.
struct Pattern {
  std::string name, layer;
};
Pattern pattern_of(const std::string& fqn) {
  constexpr size_t kBegin = sizeof("layers.") - 1;
  const size_t end = absl::StartsWith(fqn, "layers.") ? fqn.find('.', kBegin) : std::string::npos;
  if (end == std::string::npos) return {fqn, ""};
  return {absl::StrCat("layers.{}", fqn.substr(end)), fqn.substr(kBegin, end - kBegin)};
}

std::string fill(const std::string& name, const std::string& number) {
  const size_t hole = name.find("{}");
  return hole == std::string::npos ? name : absl::StrCat(name.substr(0, hole), number, name.substr(hole + 2));
}

class SpecMapper : public checkpoint::HfMapper {
 public:
  SpecMapper(const HfFamily& family, models::ModelSpec spec, int64_t seq_len)
      : spec_(std::move(spec)), ignores_(family.ignores) {
    config_ = family.config(spec_, seq_len > 0 ? seq_len : spec_.max_seq_len);
    for (HfName& name : family.names(spec_)) names_[name.fqn].push_back(std::move(name));
    std::set<std::string> patterns;
    const auto add_known = [&](const std::string& fqn) {
      add(fqn);
      patterns.insert(pattern_of(fqn).name);
    };
    for (const models::ParameterSpec& tensor : models::parameters(spec_)) add_known(tensor.fqn);
    for (int64_t layer = 0; layer < spec_.n_layers; ++layer) {
      if (spec_.layer_has_experts(layer)) add_known(absl::StrCat("layers.", layer, ".moe.expert_bias"));
    }
    // A plug-in may have parameters that its spec does not count. Names that only its table has may occur in every
    // layer.
    for (const auto& [pattern, rows] : names_) {
      if (patterns.contains(pattern)) continue;
      const bool per_layer = pattern.find("{}") != std::string::npos;
      for (int64_t layer = 0; layer < (per_layer ? spec_.n_layers : 1); ++layer)
        add(fill(pattern, absl::StrCat(layer)));
    }
  }

  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const override {
    const Pattern pattern = pattern_of(fqn);
    const auto rows = names_.find(pattern.name);
    if (rows == names_.end() || !fqns_.contains(fqn)) {
      return absl::NotFoundError(absl::StrCat(spec_.name, " ", spec_.flavor, " has no parameter \"", fqn, "\""));
    }
    std::vector<HfLayout> forms;
    for (const HfName& row : rows->second) {
      if (row.form != HfForm::kNotStored) forms.push_back(layout_of(row, pattern.layer));
    }
    return forms;
  }

  bool knows(const std::string& key) const override {
    return keys_.contains(key) || absl::EndsWith(key, "rotary_emb.inv_freq") ||
           (spec_.tied_embeddings && key == "lm_head.weight") || (ignores_ != nullptr && ignores_(spec_, key));
  }

  nlohmann::json config() const override { return config_; }

 private:
  void add(const std::string& fqn) {
    fqns_.insert(fqn);
    const absl::StatusOr<std::vector<HfLayout>> forms = layouts(fqn);
    if (!forms.ok()) return;  // A gap in the family's table is reported when its parameter is requested.
    for (const HfLayout& layout : *forms) keys_.insert(layout.keys.begin(), layout.keys.end());
  }

  HfLayout layout_of(const HfName& row, const std::string& layer) const {
    HfLayout layout{
        .keys = {fill(row.hf, layer)}, .optional = row.optional, .read_only = row.read_only, .float32 = row.float32};
    switch (row.form) {
      case HfForm::kSame:
      case HfForm::kNotStored:
        break;
      case HfForm::kQueryHeads:
        layout.permute_heads = spec_.n_heads;
        break;
      case HfForm::kKeyHeads:
        layout.permute_heads = spec_.n_kv_heads;
        break;
      case HfForm::kEachExpert: {
        const std::string name = layout.keys[0];
        layout.keys.clear();
        layout.stacked = true;
        for (int64_t e = 0; e < spec_.moe->num_experts; ++e) layout.keys.push_back(fill(name, absl::StrCat(e)));
        break;
      }
      case HfForm::kRows:
        layout.first_row = row.first_row;
        layout.total_rows = row.total_rows;
        break;
      case HfForm::kTransposed:
        layout.transposed = true;
        break;
      case HfForm::kTransposedFirstHalf:
      case HfForm::kTransposedSecondHalf:
        layout.transposed = true;
        layout.parts = 2;
        layout.part = row.form == HfForm::kTransposedFirstHalf ? 0 : 1;
        break;
    }
    return layout;
  }

  models::ModelSpec spec_;
  bool (*ignores_)(const models::ModelSpec&, const std::string&);
  nlohmann::json config_;
  std::map<std::string, HfNames> names_;  // By FQN with {} for the layer.
  std::set<std::string> fqns_;            // FQNs of this model's parameters and saved buffers.
  std::set<std::string> keys_;            // Keys of all tensors that hold them in any form.
};

}  // namespace

std::unique_ptr<checkpoint::HfMapper> make_hf_mapper(const HfFamily& family, const models::ModelSpec& spec,
                                                     int64_t seq_len) {
  if (family.mapper != nullptr) return family.mapper(spec);
  return std::make_unique<SpecMapper>(family, spec, seq_len);
}

namespace {

// Returns the spec with the defaults of numbers that have no effect, which a config.json does not state.
models::ModelSpec without_idle_numbers(models::ModelSpec spec) {
  const models::ModelSpec usual;
  if (spec.sliding_window == 0) {
    spec.window_step = usual.window_step;
    spec.window_first_layer = usual.window_first_layer;
    spec.window_rope_theta = 0;
  }
  bool all_have_positions = true;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) all_have_positions &= spec.layer_has_positions(layer);
  if (all_have_positions) {
    spec.nope_ends_step = spec.nope_layer_step > 0 && spec.attention_chunk > 0;
    spec.nope_layer_step = spec.nope_ends_step ? spec.n_layers + 1 : 0;
    spec.query_temperature_floor = 0;
    spec.query_temperature_scale = usual.query_temperature_scale;
  }
  const double usual_scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  constexpr double kRounding = 1e-12;
  if (std::abs(spec.attention_scale - usual_scale) < kRounding * usual_scale) spec.attention_scale = 0;
  return spec;
}

// Whether two values of a number, as JSON, are the same but for rounding.
bool same_number(const std::string& a, const std::string& b) {
  double x = 0, y = 0;
  constexpr double kRounding = 1e-12;
  return absl::SimpleAtod(a, &x) && absl::SimpleAtod(b, &y) && std::abs(x - y) <= kRounding * std::abs(y);
}

// Checks that transformers would compute the same model from the config.json of an export: a job may give a family
// numbers that its class does not have. Skips the stretching of positions that depends on the length of rows.
absl::Status check_config(const nlohmann::json& config, const models::ModelSpec& spec) {
  if (!config.is_object()) return absl::OkStatus();
  const std::string type = config.value("model_type", "");
  if (!hf_config::reads(type)) return absl::OkStatus();
  const std::string form =
      absl::StrCat("a config.json of model_type ", type, " cannot describe this model of ", spec.name, ": ");
  const absl::StatusOr<hf_config::HfModel> read = hf_config::read_model(config);
  if (!read.ok()) return absl::FailedPreconditionError(absl::StrCat(form, std::string(read.status().message())));
  models::ModelSpec there = read->spec;
  there.name = spec.name;
  const bool depends_on_length = spec.yarn && spec.yarn->only_beyond_original;
  const nlohmann::json numbers = models::to_json(without_idle_numbers(std::move(there)));
  for (const models::SpecDifference& one : models::differences(numbers, without_idle_numbers(spec))) {
    if ((one.positions && depends_on_length) || same_number(one.there, one.here)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(form, one.name, " is ", one.here, ", and would become ", one.there));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<checkpoint::HfMapper>> make_hf_mapper(const models::ModelSpec& spec, int64_t seq_len) {
  const absl::StatusOr<HfFamily> family = hf_family(spec.name);
  if (!family.ok()) return family.status();
  std::unique_ptr<checkpoint::HfMapper> mapper = make_hf_mapper(*family, spec, seq_len);
  if (absl::Status bad = check_config(mapper->config(), spec); !bad.ok()) return bad;
  return mapper;
}

}  // namespace titan::model
