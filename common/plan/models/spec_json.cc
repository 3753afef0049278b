#include "common/plan/models/spec_json.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/nearest.h"
#include "common/plan/models/spec_members.h"

namespace titan::models {
namespace {

using nlohmann::json;

template <typename T>
concept Part = requires(T& part) {
  visit_members(part, [](const char*, auto&) {});
};

template <typename T>
concept Enum = std::is_enum_v<T>;

template <Part T>
json written(const T& part);
json written(const auto& value) { return value; }
json written(const Enum auto& value) { return kNamesOf<std::remove_cvref_t<decltype(value)>>[static_cast<int>(value)]; }
template <typename T>
json written(const std::optional<T>& part) {
  return part ? written(*part) : json();
}
template <Part T>
json written(const T& part) {
  json table = json::object();
  visit_members(part, [&](const char* name, const auto& member) { table[name] = written(member); });
  return table;
}

absl::Status wrong_type(const std::string& name, const json& value, const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value.dump(), " is not ", expected));
}

template <Part T>
absl::Status read(const std::string& name, const json& values, T& part);

absl::Status read(const std::string& name, const json& value, bool& into) {
  if (!value.is_boolean()) return wrong_type(name, value, "true or false");
  into = value.get<bool>();
  return absl::OkStatus();
}

absl::Status read(const std::string& name, const json& value, int64_t& into) {
  if (!value.is_number_integer()) return wrong_type(name, value, "an integer");
  into = value.get<int64_t>();
  return absl::OkStatus();
}

absl::Status read(const std::string& name, const json& value, double& into) {
  if (!value.is_number()) return wrong_type(name, value, "a number");
  into = value.get<double>();
  return absl::OkStatus();
}

absl::Status read(const std::string& name, const json& value, std::string& into) {
  if (!value.is_string()) return wrong_type(name, value, "a text");
  into = value.get<std::string>();
  return absl::OkStatus();
}

template <Enum T>
absl::Status read(const std::string& name, const json& value, T& into) {
  const auto& names = kNamesOf<T>;
  for (size_t i = 0; i < names.size(); ++i) {
    if (value != names[i]) continue;
    into = static_cast<T>(i);
    return absl::OkStatus();
  }
  return wrong_type(name, value, absl::StrCat("one of ", absl::StrJoin(names, ", ")));
}

// Reads std::vector<int64_t>, std::vector<std::string> and std::array<int64_t, N>.
template <typename List>
requires requires(List& list) {
  list.begin();
} &&(!std::same_as<List, std::string>)absl::Status read(const std::string& name, const json& value, List& into) {
  if (!value.is_array()) return wrong_type(name, value, "a list");
  if constexpr (requires { into.resize(1); }) {
    into.resize(value.size());
  } else if (value.size() != into.size()) {
    return wrong_type(name, value, absl::StrCat("a list of ", into.size()));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    TITAN_RETURN_IF_ERROR(read(absl::StrCat(name, "[", i, "]"), value[i], into[i]));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status read(const std::string& name, const json& value, std::optional<T>& into) {
  if (value.is_null()) {
    into.reset();
    return absl::OkStatus();
  }
  if (!into) into.emplace();
  return read(name, value, *into);
}

template <Part T>
absl::Status read(const std::string& name, const json& values, T& part) {
  if (!values.is_object()) return wrong_type(name.empty() ? "model" : name, values, "a table");
  const std::string prefix = name.empty() ? "" : absl::StrCat(name, ".");
  std::vector<std::string> known;
  absl::Status status;
  visit_members(part, [&](const char* member, auto& into) {
    known.push_back(member);
    if (status.ok() && values.contains(member)) status = read(absl::StrCat(prefix, member), values[member], into);
  });
  TITAN_RETURN_IF_ERROR(status);
  for (const auto& [key, value] : values.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, key, ": models have no such number", did_you_mean(key, known)));
  }
  return absl::OkStatus();
}

}  // namespace

json to_json(const ModelSpec& spec) { return written(spec); }

absl::Status set_members(const json& values, ModelSpec& spec) { return read("", values, spec); }

absl::StatusOr<ModelSpec> from_json(const json& values) {
  ModelSpec spec;
  TITAN_RETURN_IF_ERROR(set_members(values, spec));
  if (spec.flux) {  // They are members of both (flux_model()).
    spec.flux->name = spec.name;
    spec.flux->flavor = spec.flavor;
    spec.flux->dim = spec.dim;
    spec.flux->n_heads = spec.n_heads;
    spec.flux->rope_theta = spec.rope_theta;
  }
  return spec;
}

}  // namespace titan::models
