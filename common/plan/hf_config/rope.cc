#include "common/plan/hf_config/rope.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::hf_config {
namespace {

using models::ModelSpec;
using models::YarnScaling;
using nlohmann::json;

// A table and its key: "rope_scaling" or "rope_parameters".
struct Table {
  std::string key;
  json values = json::object();
};

bool is_table(const Keys& file, const char* key) { return file.at(key).is_object() && !file.at(key).empty(); }

// Returns the type under either of its two keys; "" stands for an unknown or contradictory type.
json kind_of(const json& table) {
  const json current = table.value("rope_type", json()), old = table.value("type", json());
  if (!current.is_null() && !old.is_null() && current != old) return "";
  if (!current.is_null() || !old.is_null()) return current.is_null() ? old : current;
  // A rope_parameters that holds at most theta is of type "default".
  return table.size() == (table.contains("rope_theta") ? 1u : 0u) ? json("default") : json("");
}

// Keys that both tables have must agree: transformers 4 reads one table, 5 the other.
void check_same(Keys& file) {
  const json old = file.at("rope_scaling"), current = file.at("rope_parameters");
  if (kind_of(old) != kind_of(current)) file.refuse("rope_scaling", "the same as rope_parameters");
  for (const auto& [key, value] : old.items()) {
    if (key == "type" || key == "rope_type") continue;
    if (current.value(key, json()) != value) file.refuse("rope_scaling", "the same as rope_parameters");
  }
}

// Returns the file's table, or the class's if the file has none. If the class has a table, transformers 4 reads an
// explicit null as no scaling and 5 as the class's table.
Table table_of(Keys& file, const json& defaults) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!file.at(key).is_null() && !file.at(key).is_object()) file.refuse(key, "a table or null");
  }
  if (is_table(file, "rope_parameters")) {
    if (is_table(file, "rope_scaling")) check_same(file);
    return {"rope_parameters", file.at("rope_parameters")};
  }
  if (is_table(file, "rope_scaling")) return {"rope_scaling", file.at("rope_scaling")};
  if (!defaults.contains("rope_scaling")) return {"rope_scaling"};
  const bool says_none = file.object().contains("rope_scaling") || file.object().contains("rope_parameters");
  if (!says_none) return {"rope_scaling", defaults["rope_scaling"]};
  const json writer = file.at("transformers_version");
  if (!writer.is_string() || !absl::StartsWith(writer.get<std::string>(), "4.")) {
    file.refuse(file.object().contains("rope_scaling") ? "rope_scaling" : "rope_parameters",
                "a table (transformers 4 and 5 take different ones for null)");
  }
  return {"rope_scaling"};
}

void take_theta(Keys& file, Keys& table, const json& defaults, ModelSpec& spec) {
  spec.rope_theta = defaults.value("rope_theta", 1e4);
  file.take("rope_theta", spec.rope_theta);
  double inner = spec.rope_theta;
  table.take("rope_theta", inner);
  if (file.has("rope_theta") && inner != spec.rope_theta)
    table.refuse("rope_theta", "the same as outside of the table");
  spec.rope_theta = inner;
}

void refuse_unknown(Keys& table, const std::string& kind) {
  std::set<std::string> known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  if (kind != "default") known.insert("factor");
  if (kind == "llama3") known.insert({"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
  if (kind == "yarn") {
    known.insert({"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
                  "mscale_all_dim", "truncate"});
  }
  for (const auto& [key, value] : table.object().items()) {
    if (!known.contains(key) && !value.is_null())
      table.refuse(key, absl::StrCat("a table of type ", kind, " without this key"));
  }
}

// transformers 5 prefers the number outside the table; 4 reads only the table.
void check_original_length(Keys& file, Keys& table) {
  const char* const key = "original_max_position_embeddings";
  if (file.has(key) && file.at(key) != table.at(key)) file.refuse(key, "the same as in the table of positions");
}

void take_llama3(Keys& file, Keys& table, ModelSpec& spec) {
  models::LlamaRopeScaling read;
  table.need("factor", read.factor);
  table.need("low_freq_factor", read.low_freq_factor);
  table.need("high_freq_factor", read.high_freq_factor);
  table.need("original_max_position_embeddings", read.original_seq_len);
  check_original_length(file, table);
  spec.rope_scaling = read;
}

// Divides every wavelength by the factor: each is longer than an original context of 0.
void take_linear(Keys& table, ModelSpec& spec) {
  models::LlamaRopeScaling read;
  table.need("factor", read.factor);
  read.original_seq_len = 0;
  spec.rope_scaling = read;
}

double magnitude(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }
bool about(double a, double b) { return std::abs(a - b) <= 1e-12 * std::abs(b); }

// How YaRN's magnitude is divided between the rotation and the attention scale, and whether its blend has integer
// bounds.
struct YarnMagnitude {
  double rotation = 1;  // Multiplies cosines and sines.
  double all_dim = 0;   // mscale_all_dim, by which latent attention scales its scores; 0: not used.
  bool whole_bounds = true;
};

YarnMagnitude strength_of(Keys& table, const YarnScaling& yarn, bool latent) {
  YarnMagnitude strength;
  double mscale = 0, all_dim = 0;
  table.take("mscale", mscale);
  table.take("mscale_all_dim", all_dim);
  strength.rotation = mscale != 0 && all_dim != 0 ? magnitude(yarn.factor, mscale) / magnitude(yarn.factor, all_dim)
                                                  : magnitude(yarn.factor, 1);
  table.take("attention_factor", strength.rotation);
  table.take("truncate", strength.whole_bounds);
  if (latent) strength.all_dim = all_dim;
  return strength;
}

// DeepSeek's form leaves the rotation unscaled, scales the scores and blends between integer bounds. Every other one
// scales the rotation and not the scores.
void settle_form(Keys& table, const YarnMagnitude& strength, YarnScaling& yarn) {
  yarn.scales_cos_sin = !about(strength.rotation, 1) || !strength.whole_bounds;
  if (!yarn.scales_cos_sin) {
    yarn.mscale = strength.all_dim;
    return;
  }
  if (strength.rotation <= 0) return table.refuse("attention_factor", "a factor above 0");
  if (strength.all_dim != 0) return table.refuse("mscale_all_dim", "only 0 where cosines and sines are scaled");
  yarn.rounds_bounds = strength.whole_bounds;
  if (!about(strength.rotation, magnitude(yarn.factor, 1))) yarn.cos_sin_factor = strength.rotation;
}

void take_yarn(Keys& file, Keys& table, int64_t length, ModelSpec& spec) {
  YarnScaling yarn;
  yarn.only_beyond_original = false;
  table.need("factor", yarn.factor);
  for (const auto& [key, into] : {std::pair{"beta_fast", &yarn.beta_fast}, std::pair{"beta_slow", &yarn.beta_slow}}) {
    double there = *into;
    table.take(key, there);
    if (there != 0) *into = there;  // transformers treats 0 as "not set".
  }
  yarn.original_seq_len = length;
  table.take("original_max_position_embeddings", yarn.original_seq_len);
  check_original_length(file, table);
  const bool latent = spec.attention == models::Attention::kLatent;
  settle_form(table, strength_of(table, yarn, latent), yarn);
  spec.yarn = yarn;
}

// A class with a default for the part of a head that is rotated computes it; the others rotate whole heads.
// transformers 4 writes the part outside the table, 5 inside.
void take_rotary_part(Keys& file, Keys& table, const json& defaults, ModelSpec& spec) {
  const char* const key = "partial_rotary_factor";
  spec.rotary_dim = 0;
  if (!defaults.contains(key)) {
    file.expect(key, 1.0);
    table.expect(key, 1.0);
    return;
  }
  double part = defaults[key].get<double>();
  file.take(key, part);
  double inner = part;
  table.take(key, inner);
  if (file.has(key) && inner != part) table.refuse(key, "the same as outside of the table");
  const auto channels = static_cast<int64_t>(static_cast<double>(spec.head_dim) * inner);
  if (!(inner > 0 && inner <= 1) || channels < 2 || channels % 2 != 0) {
    Keys& owner = table.has(key) ? table : file;
    return owner.refuse(key,
                        absl::StrCat("a part from 0 to 1 with an even number of the ", spec.head_dim, " channels"));
  }
  if (channels < spec.head_dim) spec.rotary_dim = channels;
}

void take_one_table(Keys& file, const json& defaults, ModelSpec& spec) {
  const Table found = table_of(file, defaults);
  Keys table(found.values, absl::StrCat(found.key, "."));
  take_theta(file, table, defaults, spec);
  take_rotary_part(file, table, defaults, spec);
  int64_t length = defaults.value("max_position_embeddings", int64_t{0});
  file.take("max_position_embeddings", length);
  const json kind = kind_of(found.values);
  if (kind == "llama3") {
    take_llama3(file, table, spec);
  } else if (kind == "linear") {
    take_linear(table, spec);
  } else if (kind == "yarn") {
    take_yarn(file, table, length, spec);
  } else if (kind != "default") {
    file.refuse(found.key, "none, or a table of type linear, llama3 or yarn");
  }
  if (file.status().ok() && kind.is_string()) refuse_unknown(table, kind.get<std::string>());
  file.fail(table.status());
}

// Layers with a window rotate by a separate theta. transformers 4 writes it as a key, 5 as the theta of one of two
// tables. Returns the file with the other layers' table alone.
json without_window_table(Keys& file, const json& defaults, ModelSpec& spec) {
  const char *const key = "rope_local_base_freq", *const outer = "rope_parameters";
  spec.window_rope_theta = defaults[key].get<double>();
  if (file.has(key)) file.need(key, spec.window_rope_theta);
  json flat = file.object();
  if (!is_table(file, outer)) return flat;
  const json tables = file.at(outer);
  if (!tables.contains("full_attention") && !tables.contains("sliding_attention")) return flat;
  Keys window(tables.value("sliding_attention", json::object()), "rope_parameters.sliding_attention.");
  double theta = spec.window_rope_theta;
  window.take("rope_theta", theta);
  if (file.has(key) && theta != spec.window_rope_theta) file.refuse(key, "the same as in rope_parameters");
  spec.window_rope_theta = theta;
  window.expect("rope_type", std::string("default"));
  refuse_unknown(window, "default");
  file.fail(window.status());
  if (tables.size() > (tables.contains("full_attention") ? 1u : 0u) + (tables.contains("sliding_attention") ? 1u : 0u))
    file.refuse(outer, "only tables of full_attention and sliding_attention");
  flat[outer] = tables.value("full_attention", json());
  return flat;
}

}  // namespace

void take_rope(Keys& file, const json& defaults, ModelSpec& spec) {
  spec.rope_scaling.reset();
  spec.yarn.reset();
  spec.window_rope_theta = 0;
  if (!defaults.contains("rope_local_base_freq")) return take_one_table(file, defaults, spec);
  Keys flat(without_window_table(file, defaults, spec));
  if (spec.sliding_window == 0) spec.window_rope_theta = 0;  // No layer uses it.
  take_one_table(flat, defaults, spec);
  file.fail(flat.status());
}

}  // namespace titan::hf_config
