#include "common/plan/config/normalize_spelling.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/plan/config/list_values.h"
#include "common/plan/models/registry.h"

namespace titan::config {
namespace {

using Names = std::vector<std::string_view>;

constexpr std::pair<std::string_view, std::string_view> kDataTypes[] = {
    {"bf16", "bfloat16"}, {"fp16", "float16"}, {"half", "float16"},   {"fp32", "float32"}, {"float", "float32"},
    {"fp64", "float64"},  {"f64", "float64"},  {"double", "float64"}, {"f32", "float32"},  {"f16", "float16"},
};

std::string folded(std::string_view text) {
  std::string plain = absl::AsciiStrToLower(std::string(text));
  std::erase_if(plain, [](char c) { return c == '-' || c == '_' || c == ' '; });
  return plain;
}

// Returns the one name that `text` spells differently; nothing when it is one of them, or when none or several match.
std::optional<std::string> listed(const Names& names, const std::string& text) {
  if (std::find(names.begin(), names.end(), text) != names.end()) return std::nullopt;
  std::string wanted = folded(text);
  if (wanted.starts_with("torch.")) wanted.erase(0, 6);
  for (const auto& [spelling, type] : kDataTypes) {
    if (wanted == spelling && std::find(names.begin(), names.end(), type) != names.end()) wanted = type;
  }
  std::optional<std::string> found;
  for (const std::string_view name : names) {
    if (folded(name) != wanted) continue;
    if (found) return std::nullopt;
    found = std::string(name);
  }
  return found;
}

class SpellingNormalizer {
 public:
  explicit SpellingNormalizer(const Field& field) : field_(field) {}

  void text(std::string& value) {
    const std::optional<std::string> name = listed(field_.allowed, value);
    if (!name) return;
    if (field_.allows_library_names && !absl::EqualsIgnoreCase(*name, value)) return;  // A library may use such a name.
    if (!field_.any_case || folded(value) != absl::AsciiStrToLower(value)) {
      remarks_.push_back(in_list_ ? absl::StrCat("with \"", value, "\" read as \"", *name, "\"")
                                  : absl::StrCat("is read as \"", *name, "\""));
    }
    value = *name;
  }

  // One text may contain a comma-separated list.
  void list(std::string& value) {
    std::vector<std::string> pieces = absl::StrSplit(value, ',');
    in_list_ = pieces.size() > 1;
    for (std::string& piece : pieces) {
      std::string name(absl::StripAsciiWhitespace(piece));
      text(name);
      if (name != absl::StripAsciiWhitespace(piece)) piece = std::move(name);
    }
    value = absl::StrJoin(pieces, ",");
  }

  std::vector<std::string> take() { return std::move(remarks_); }

 private:
  const Field& field_;
  std::vector<std::string> remarks_;
  bool in_list_ = false;  // Whether the text is one of several.
};

bool is_text(const RawValue& value) {
  return value.kind == RawValue::Kind::kString || value.kind == RawValue::Kind::kWord;
}

// Handles lists of tables, where each member is a field.
template <typename T>
std::vector<std::string> spell_members(RawValue& value) {
  std::vector<std::string> remarks;
  T table;
  const std::vector<Field> fields = fields_of(table);
  if (is_text(value)) {  // On the command line the list is JSON.
    std::optional<std::vector<RawValue>> tables = tables_of(value);
    if (!tables) return remarks;
    value.kind = RawValue::Kind::kList;
    value.items = *std::move(tables);
  }
  for (RawValue& item : value.items) {
    for (Member& member : item.members) {
      const auto field =
          std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.key == member.name; });
      if (field == fields.end()) continue;
      for (const std::string& remark : normalize_spelling(*field, member.value)) {
        remarks.push_back(absl::StrCat(": ", member.name, " ", remark));
      }
    }
  }
  return remarks;
}

template <typename T>
bool holds(const Field& field) {
  return std::holds_alternative<T*>(field.ref);
}

}  // namespace

std::vector<std::string> normalize_spelling(const Field& field, RawValue& value) {
  if (holds<std::vector<ParamGroup>>(field)) return spell_members<ParamGroup>(value);
  if (holds<std::vector<DataSource>>(field)) return spell_members<DataSource>(value);
  SpellingNormalizer speller(field);
  if (value.kind == RawValue::Kind::kList) {
    for (RawValue& item : value.items) {
      if (is_text(item)) speller.text(item.text);
    }
  } else if (is_text(value) && holds<std::vector<std::string>>(field)) {
    std::vector<std::string> items;
    if (!value.text.starts_with('[') || read_text_list(value.text, items)) {
      speller.list(value.text);
      return speller.take();
    }
    value.kind = RawValue::Kind::kList;
    for (std::string& item : items) {
      speller.text(item);
      value.items.push_back(raw_string(std::move(item)));
    }
  } else if (is_text(value)) {
    speller.text(value.text);
  }
  return speller.take();
}

void normalize_model_names(LoadedConfig& loaded) {
  const auto settle = [&](const char* key, const std::vector<std::string>& known, std::string& value) {
    const std::optional<std::string> name = listed(Names(known.begin(), known.end()), value);
    if (!name) return;
    const auto origin = loaded.origins.find(key);
    Problem remark{.origin = origin == loaded.origins.end() ? Origin{} : origin->second, .key = key, .value = value};
    remark.message = absl::StrCat("is read as \"", *name, "\"");
    loaded.warnings.push_back(format(remark));
    value = *name;
  };
  ModelSection& model = loaded.config.model;
  if (!loaded.config.experimental.custom_import.empty()) return;  // A library may contain models with such names.
  settle("model.name", models::names(), model.name);
  settle("model.flavor", models::flavors(model.name), model.flavor);
}

}  // namespace titan::config
