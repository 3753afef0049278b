#include "common/plan/config/low_precision.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plan/config/checker.h"
#include "common/plan/models/sizes.h"

namespace titan::config {
namespace {

constexpr std::string_view kAutoFilter = "auto_filter_small_kn";
constexpr std::int64_t kFloat8Multiple = 16, kMxBlock = 32;

bool holds_any(std::string_view name, const std::vector<std::string>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) { return name.find(part) != name.npos; });
}

bool multiples(const std::vector<std::int64_t>& shape, std::int64_t of) {
  return std::all_of(shape.end() - 2, shape.end(), [of](std::int64_t size) { return size % of == 0; });
}

// Returns "layers.1.moe.experts" for "layers.1.moe.experts.w1".
std::string_view module_of(std::string_view fqn) { return fqn.substr(0, fqn.rfind('.')); }

// Below these sizes quantizing costs more than the faster product saves, by torchao's measurements on H100s
// (_auto_filter_for_recipe).
bool too_small(LowPrecision recipe, std::int64_t n, std::int64_t k) {
  if (recipe == LowPrecision::kFloat8Tensorwise) return k <= 4096 && n <= 1024;
  return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
}

std::optional<LowPrecision> of_linear(const JobConfig& config, std::string_view module,
                                      const std::vector<std::int64_t>& shape) {
  if (converts(config, "quantize.linear.mx")) {
    if (!multiples(shape, kMxBlock) || holds_any(module, config.quantize.linear.mx.filter_fqns)) return std::nullopt;
    return LowPrecision::kMxfp8;
  }
  if (!converts(config, "quantize.linear.float8")) return std::nullopt;
  const Float8LinearSection& float8 = config.quantize.linear.float8;
  const LowPrecision recipe = float8_recipe(float8);
  std::vector<std::string> filters = float8.filter_fqns;
  const bool by_size = std::erase(filters, kAutoFilter) > 0;
  if (!multiples(shape, kFloat8Multiple) || holds_any(module, filters)) return std::nullopt;
  if (by_size && too_small(recipe, shape[0], shape[1])) return std::nullopt;
  return recipe;
}

std::optional<LowPrecision> of_experts(const JobConfig& config, std::string_view module) {
  const QuantizeGroupedMmSection& grouped = config.quantize.grouped_mm;
  if (converts(config, "quantize.grouped_mm.mx") && holds_any(module, grouped.mx.fqns)) return LowPrecision::kMxfp8;
  if (converts(config, "quantize.grouped_mm.float8") && holds_any(module, grouped.float8.fqns)) {
    return LowPrecision::kFloat8Rowwise;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name(LowPrecision recipe) {
  switch (recipe) {
    case LowPrecision::kFloat8Tensorwise:
      return "float8 tensorwise";
    case LowPrecision::kFloat8Rowwise:
      return "float8 rowwise";
    case LowPrecision::kFloat8RowwiseGwHp:
      return "float8 rowwise_with_gw_hp";
    case LowPrecision::kMxfp8:
      return "mxfp8";
  }
  return "";
}

LowPrecision float8_recipe(const Float8LinearSection& float8) {
  if (float8.recipe_name == "rowwise") return LowPrecision::kFloat8Rowwise;
  if (float8.recipe_name == "rowwise_with_gw_hp") return LowPrecision::kFloat8RowwiseGwHp;
  return LowPrecision::kFloat8Tensorwise;
}

bool scales_over_all_ranks(const JobConfig& config) {
  const std::string& over = config.quantize.linear.float8.scales_over;
  return over == "all_ranks" || (over == "auto" && config.resources.device != "cuda");
}

bool converts(const JobConfig& config, std::string_view converter) {
  const std::vector<std::string>& all = config.model.converters;
  return std::find(all.begin(), all.end(), converter) != all.end();
}

std::optional<LowPrecision> low_precision_of(const JobConfig& config, std::string_view fqn,
                                             const std::vector<std::int64_t>& shape) {
  const std::string_view module = module_of(fqn);
  if (shape.size() == 3) return of_experts(config, module);
  if (shape.size() != 2 || !fqn.ends_with(".weight") || module == "tok_embeddings") return std::nullopt;
  return of_linear(config, module, shape);
}

bool gathered_as_float8(const JobConfig& config, std::string_view fqn, const std::vector<std::int64_t>& shape) {
  return config.quantize.linear.float8.enable_fsdp_float8_all_gather &&
         low_precision_of(config, fqn, shape) == LowPrecision::kFloat8Tensorwise;
}

std::string unfit_experts(const JobConfig& config, const models::ModelSpec& spec) {
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    if (tensor.shape.size() != 3) continue;
    const std::optional<LowPrecision> recipe = low_precision_of(config, tensor.fqn, tensor.shape);
    if (!recipe) continue;
    const std::int64_t block = recipe == LowPrecision::kMxfp8 ? kMxBlock : kFloat8Multiple;
    if (multiples(tensor.shape, block)) continue;
    return absl::StrCat(tensor.fqn, " has matrices of ", tensor.shape[1], " x ", tensor.shape[2],
                        ", which are not multiples of ", block);
  }
  return "";
}

namespace {

constexpr char kLinear[] = "quantize.linear.", kGrouped[] = "quantize.grouped_mm.";

// Returns "float8" for "quantize.linear.float8".
std::string type_of(const std::string& converter) { return converter.substr(converter.rfind('.') + 1); }

// A weight has one recipe, and dense layers and experts have one type, as in torchtitan.
void check_converters(Checker& check) {
  std::vector<std::string> all = check.config().model.converters;
  std::erase(all, "lora");  // Checked separately.
  for (auto one = all.begin(); one != all.end(); ++one) {
    if (std::find(all.begin(), one, *one) != one) {
      check.fail("model.converters", *one, "is listed twice", "list it once");
    } else if (type_of(*one) != type_of(all.front())) {
      check.fail("model.converters", absl::StrJoin(all, ","),
                 absl::StrCat("layers cannot be ", type_of(all.front()), " and ", type_of(*one), " in one model"),
                 absl::StrCat("keep only those that end in ", type_of(all.front())));
    }
  }
}

void check_float8(Checker& check) {
  const Float8LinearSection& float8 = check.config().quantize.linear.float8;
  const std::string section = absl::StrCat(kLinear, "float8.");
  const std::string recipe = float8.recipe_name.value_or("tensorwise");
  if (float8.enable_fsdp_float8_all_gather && recipe != "tensorwise") {
    check.fail(section + "enable_fsdp_float8_all_gather", true,
               absl::StrCat("needs one scale per weight, but ", section, "recipe_name is ", recipe),
               absl::StrCat("leave it out, or use ", section, "recipe_name = \"tensorwise\""));
  }
  if (float8.precompute_float8_dynamic_scale_for_fsdp && !float8.enable_fsdp_float8_all_gather) {
    check.fail(section + "precompute_float8_dynamic_scale_for_fsdp", true,
               absl::StrCat("computes scales of weights that FSDP gathers as float8, but ", section,
                            "enable_fsdp_float8_all_gather is false"),
               absl::StrCat("set ", section, "enable_fsdp_float8_all_gather = true"));
  }
  const std::vector<std::string>& filters = float8.filter_fqns;
  if (recipe == "rowwise_with_gw_hp" &&
      std::find(filters.begin(), filters.end(), "auto_filter_small_kn") != filters.end()) {
    check.fail(section + "filter_fqns", "auto_filter_small_kn",
               absl::StrCat("has no table of sizes for ", section, "recipe_name = \"rowwise_with_gw_hp\""),
               "name the layers, or use the recipe rowwise");
  }
}

// Experts are selected only by name. A name without a match would silently convert nothing.
void check_experts(Checker& check, const std::string& type, const std::vector<std::string>& fqns,
                   const models::ModelSpec* spec) {
  const std::string key = absl::StrCat(kGrouped, type, ".fqns");
  const std::string use = absl::StrCat("use ", key, " = [\"experts\"]");
  if (fqns.empty()) {
    check.fail(key, "[]", absl::StrCat("names no experts, though model.converters has ", kGrouped, type), use);
    return;
  }
  if (spec == nullptr) return;
  if (!spec->moe) {
    check.fail("model.converters", absl::StrCat(kGrouped, type),
               absl::StrCat("converts experts, and ", spec->name, " ", spec->flavor, " has none"), "leave it out");
    return;
  }
  for (const std::string& part : fqns) {
    bool found = false;
    for (std::int64_t layer = 0; layer < spec->n_layers && !found; ++layer) {
      found = spec->layer_has_experts(layer) && absl::StrContains(absl::StrCat("layers.", layer, ".moe.experts"), part);
    }
    if (!found) {
      check.fail(key, part, absl::StrCat("matches no experts of ", spec->name, " ", spec->flavor), use);
    }
  }
}

}  // namespace

// Checks converters that conflict with each other or with the model.
void check_low_precision(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const JobConfig& config = check.config();
  check_converters(check);
  if (converts(config, "quantize.linear.float8")) check_float8(check);
  const models::ModelSpec* known = spec ? &*spec : nullptr;
  const QuantizeGroupedMmSection& grouped = config.quantize.grouped_mm;
  if (converts(config, "quantize.grouped_mm.float8")) check_experts(check, "float8", grouped.float8.fqns, known);
  if (converts(config, "quantize.grouped_mm.mx")) check_experts(check, "mx", grouped.mx.fqns, known);
  if (known == nullptr) return;
  if (const std::string unfit = unfit_experts(config, *known); !unfit.empty()) {
    check.fail("model.converters", absl::StrJoin(config.model.converters, ","), unfit,
               "leave the experts' converter out");
  }
}

}  // namespace titan::config
