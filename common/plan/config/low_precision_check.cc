// What converters cannot do together, or with a model.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plan/config/checker.h"
#include "common/plan/config/low_precision.h"

namespace titan::config {
namespace {

constexpr char kLinear[] = "quantize.linear.", kGrouped[] = "quantize.grouped_mm.";

// "float8" of "quantize.linear.float8".
std::string type_of(const std::string& converter) { return converter.substr(converter.rfind('.') + 1); }

// Weights have one recipe, and dense layers and experts one type, as in torchtitan.
void check_converters(Checker& check) {
  std::vector<std::string> all = check.config().model.converters;
  std::erase(all, "lora");  // Has checks of its own.
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
  const Float8Linear& float8 = check.config().quantize.linear.float8;
  const std::string section = absl::StrCat(kLinear, "float8.");
  const std::string recipe = float8.recipe_name.value_or("tensorwise");
  if (float8.enable_fsdp_float8_all_gather && recipe != "tensorwise") {
    check.fail(section + "enable_fsdp_float8_all_gather", true,
               absl::StrCat("needs one scale a weight, but ", section, "recipe_name is ", recipe),
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

// Experts are converted by name alone: a name that no experts have would leave them as they are, in silence.
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
      check.fail(key, part, absl::StrCat("is in the name of no experts of ", spec->name, " ", spec->flavor), use);
    }
  }
}

}  // namespace

void check_low_precision(Checker& check, const std::optional<models::ModelSpec>& spec) {
  const JobConfig& config = check.config();
  check_converters(check);
  if (converts(config, "quantize.linear.float8")) check_float8(check);
  const models::ModelSpec* known = spec ? &*spec : nullptr;
  const QuantizeGroupedMm& grouped = config.quantize.grouped_mm;
  if (converts(config, "quantize.grouped_mm.float8")) check_experts(check, "float8", grouped.float8.fqns, known);
  if (converts(config, "quantize.grouped_mm.mx")) check_experts(check, "mx", grouped.mx.fqns, known);
  if (known == nullptr) return;
  if (const std::string unfit = unfit_experts(config, *known); !unfit.empty()) {
    check.fail("model.converters", absl::StrJoin(config.model.converters, ","), unfit,
               "leave the experts' converter out");
  }
}

}  // namespace titan::config
