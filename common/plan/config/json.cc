#include "common/plan/config/json.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/plan/config/apply_settings.h"
#include "common/plan/config/assign.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/list_values.h"
#include "common/plan/hf_config/keys.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using nlohmann::json;

template <typename T>
json as_json(const T& value) {
  return value;
}

json as_json(const std::vector<ParamGroup>& groups) { return group_list_json(groups); }
json as_json(const std::vector<DataSource>& sources) { return source_list_json(sources); }

template <typename T>
json as_json(const std::optional<T>& value) {
  return value.has_value() ? json(*value) : json(nullptr);
}

json value_of(const Field& field) {
  return std::visit([](auto* member) { return as_json(*member); }, field.ref);
}

// Returns the object of a nested section, creating it if missing.
json& section_object(json& root, std::string_view name) {
  json* at = &root;
  for (const auto part : absl::StrSplit(std::string(name), '.')) at = &(*at)[std::string(part)];
  if (at->is_null()) *at = json::object();
  return *at;
}

RawValue to_raw(const json& value) {
  RawValue raw;
  switch (value.type()) {
    case json::value_t::boolean:
      return raw_bool(value.get<bool>());
    case json::value_t::number_integer:
      return raw_int(value.get<std::int64_t>());
    case json::value_t::number_unsigned:
      if (value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) return raw_float(value.get<double>());
      return raw_int(value.get<std::int64_t>());
    case json::value_t::number_float:
      return raw_float(value.get<double>());
    case json::value_t::string:
      return raw_string(value.get<std::string>());
    case json::value_t::array:
      raw.kind = RawValue::Kind::kList;
      for (const json& item : value) raw.items.push_back(to_raw(item));
      break;
    case json::value_t::object:
      raw.kind = RawValue::Kind::kTable;
      for (const auto& [name, member] : value.items()) raw.members.push_back({name, to_raw(member)});
      break;
    default:
      break;
  }
  return raw;
}

// Returns the object of a section, or null if it is missing.
const json* find_section(const json& root, std::string_view name) {
  const json* at = &root;
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('.', start), name.size());
    const auto found = at->find(std::string(name.substr(start, end - start)));
    if (found == at->end() || !found->is_object()) return nullptr;
    at = &*found;
    start = end + 1;
  }
  return at;
}

std::size_t count_leaves(const json& value) {
  if (!value.is_object() || value.empty()) return 1;
  std::size_t count = 0;
  for (const json& member : value) count += count_leaves(member);
  return count;
}

// Reads valid values of current keys into `config`. Returns false if `value` has anything else, which the caller then
// diagnoses.
bool read_plain(const json& value, JobConfig& config) {
  std::size_t taken = 0;
  for (const Section& section : sections(config)) {
    const json* object = find_section(value, section.name);
    if (object == nullptr) continue;
    for (const Field& field : section.fields) {
      const auto member = object->find(std::string(field.key));
      if (member == object->end()) continue;
      if (assign(field, to_raw(*member))) return false;
      ++taken;
    }
  }
  return taken == count_leaves(value);
}

// Position of each key of the JSON form among the sections; the same for every configuration.
struct Layout {
  std::size_t section = 0, field = 0;     // Indices, for a value.
  std::map<std::string, Layout> members;  // Members by key, for an object; otherwise empty.
};

Layout layout_of_sections() {
  JobConfig config;
  const std::vector<Section> all = sections(config);
  Layout root;
  for (std::size_t s = 0; s < all.size(); ++s) {
    Layout* at = &root;
    for (const auto part : absl::StrSplit(std::string(all[s].name), '.')) at = &at->members[std::string(part)];
    for (std::size_t f = 0; f < all[s].fields.size(); ++f) at->members[std::string(all[s].fields[f].key)] = {s, f, {}};
  }
  return root;
}

void append_value(const Field& field, std::string& text) {
  const auto append = [&text](auto* member) {
    using Value = std::remove_pointer_t<decltype(member)>;
    if constexpr (std::is_same_v<Value, bool>) {
      text += *member ? "true" : "false";
    } else if constexpr (std::is_same_v<Value, int> || std::is_same_v<Value, std::int64_t>) {
      absl::StrAppend(&text, *member);
    } else {
      text += as_json(*member).dump();
    }
  };
  std::visit(append, field.ref);
}

// Whether text does not have the key.
bool is_left_out(const Section& section, const Field& field) { return section.only_set && value_of(field).is_null(); }

void append_object(const Layout& layout, const std::vector<Section>& all, std::string& text) {
  char separator = '{';
  for (const auto& [key, member] : layout.members) {
    const bool is_value = member.members.empty();
    if (is_value && is_left_out(all[member.section], all[member.section].fields[member.field])) continue;
    const std::size_t before = text.size();
    absl::StrAppend(&text, std::string(1, separator), "\"", key, "\":");
    if (is_value) {
      append_value(all[member.section].fields[member.field], text);
    } else {
      append_object(member, all, text);
      if (absl::EndsWith(text, ":{}")) {  // Nothing is set in the section.
        text.resize(before);
        continue;
      }
    }
    separator = ',';
  }
  text += separator == '{' ? "{}" : "}";
}

// TOML's basic strings use the same escapes as JSON's.
std::string toml_value(const json& value) {
  if (value.is_null()) return "\"None\"";
  if (value.is_object()) {
    std::string table;
    for (const auto& [key, member] : value.items())
      absl::StrAppend(&table, table.empty() ? "{" : ", ", key, " = ", toml_value(member));
    return table + "}";
  }
  if (!value.is_array()) return absl::StrReplaceAll(value.dump(), {{"\x7f", "\\u007f"}});  // TOML requires this escape.
  std::string text = "[";
  for (const json& item : value) absl::StrAppend(&text, text.size() > 1 ? ", " : "", toml_value(item));
  return text + "]";
}

template <typename T>
json table_list_schema();

template <typename T>
json schema_of(const T*) {
  if constexpr (std::is_same_v<T, bool>) return {{"type", "boolean"}};
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, std::int64_t>) return {{"type", "integer"}};
  if constexpr (std::is_same_v<T, double>) return {{"type", "number"}};
  if constexpr (std::is_same_v<T, std::string>) return {{"type", "string"}};
  if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return {{"type", "array"}, {"items", {{"type", "string"}}}};
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>)
    return {{"type", "array"}, {"items", {{"type", "integer"}}}};
  if constexpr (std::is_same_v<T, std::vector<ParamGroup>> || std::is_same_v<T, std::vector<DataSource>>)
    return table_list_schema<typename T::value_type>();
  if constexpr (std::is_same_v<T, StringLists>) {
    return {{"type", "array"}, {"items", {{"type", "array"}, {"items", {{"type", "string"}}}}}};
  }
}

template <typename T>
json schema_of(const std::optional<T>*) {
  json schema = schema_of(static_cast<const T*>(nullptr));
  schema["type"] = json::array({schema["type"], "null"});
  return schema;
}

json field_schema(const Field& field) {
  json schema = std::visit([](auto* member) { return schema_of(member); }, field.ref);
  schema["description"] =
      std::string(field.meaning) + (field.unit.empty() ? "" : absl::StrCat(" (", std::string(field.unit), ")"));
  schema["default"] = value_of(field);
  if (!field.no_effect.empty()) schema["deprecated"] = true;
  if (field.allows_library_names) {
    for (const std::string_view choice : field.allowed) schema["examples"].push_back(std::string(choice));
  } else if (!field.allowed.empty()) {
    json choices = json::array();
    for (const std::string_view choice : field.allowed) choices.push_back(std::string(choice));
    if (schema["type"] == "array") {
      schema["items"]["enum"] = choices;
    } else {
      if (schema["type"].is_array()) choices.push_back(nullptr);
      schema["enum"] = choices;
    }
  }
  json bounds = json::object();
  if (field.positive) bounds["exclusiveMinimum"] = 0;
  if (!field.positive && std::isfinite(field.minimum)) bounds["minimum"] = field.minimum;
  if (std::isfinite(field.maximum)) bounds["maximum"] = field.maximum;
  if (field.special.has_value()) {
    schema["anyOf"] = json::array({bounds, {{"const", *field.special}}});
  } else {
    (schema["type"] == "array" ? schema["items"] : schema).update(bounds);
  }
  if (field.number_as_text) schema["type"] = json::array({"string", "integer"});
  return schema;
}

template <typename T>
json table_list_schema() {
  T defaults;
  const std::vector<Field> fields = fields_of(defaults);
  json item = {
      {"type", "object"}, {"additionalProperties", false}, {"required", json::array({std::string(fields[0].key)})}};
  for (const Field& field : fields) item["properties"][std::string(field.key)] = field_schema(field);
  return {{"type", "array"}, {"items", item}};
}

}  // namespace

json to_json(const JobConfig& config) {
  JobConfig copy = config;
  json root = json::object();
  for (const Section& section : sections(copy)) {
    json& object = section_object(root, section.name);
    for (const Field& field : section.fields) object[std::string(field.key)] = value_of(field);
  }
  return root;
}

std::string to_json_text(const JobConfig& config) {
  static const Layout* const layout = new Layout(layout_of_sections());
  JobConfig copy = config;
  std::string text;
  text.reserve(12 << 10);
  append_object(*layout, sections(copy), text);
  return text;
}

absl::StatusOr<JobConfig> from_json(const json& value) {
  if (!value.is_object()) return absl::InvalidArgumentError("configuration: expects a JSON object with sections");
  if (hf_config::is_nested_deeper(value, kMaxDepth))
    return absl::InvalidArgumentError("configuration: nested too deeply");
  // Fast path for a valid configuration, several times faster than finding what is wrong.
  if (JobConfig config; read_plain(value, config)) return config;
  Applier applier;
  applier.apply(flatten(to_raw(value), "configuration"), Applier::Repeats::kAreErrors);
  make_printable(applier.problems());
  if (!applier.problems().empty()) return to_status(applier.problems());
  return applier.take().config;
}

std::string to_toml(const JobConfig& config, bool only_changed) {
  JobConfig copy = config, defaults;
  const std::vector<Section> base = sections(defaults);
  const std::vector<Section> all = sections(copy);
  std::string text;
  for (std::size_t s = 0; s < all.size(); ++s) {
    std::string body;
    for (std::size_t f = 0; f < all[s].fields.size(); ++f) {
      const json value = value_of(all[s].fields[f]);
      const json standard = value_of(base[s].fields[f]);
      // TOML has no null, so an absent value is written only if the default is not null.
      if (value == standard && (only_changed || value.is_null())) continue;
      absl::StrAppend(&body, std::string(all[s].fields[f].key), " = ", toml_value(value), "\n");
    }
    if (!body.empty()) absl::StrAppend(&text, text.empty() ? "" : "\n", "[", std::string(all[s].name), "]\n", body);
  }
  return text;
}

json json_schema() {
  JobConfig defaults;
  json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Titan job configuration"},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", json::object()}};
  for (const Section& section : sections(defaults)) {
    json* at = &root;
    for (const auto part : absl::StrSplit(std::string(section.name), '.')) {
      at = &(*at)["properties"][std::string(part)];
      (*at)["type"] = "object";
      (*at)["additionalProperties"] = false;
    }
    (*at)["description"] = std::string(section.meaning);
    for (const Field& field : section.fields) (*at)["properties"][std::string(field.key)] = field_schema(field);
  }
  return root;
}

absl::Status report(const JobConfig& config) {
  if (!config.job.print_config && !config.job.save_config_file.has_value()) return absl::OkStatus();
  const std::string text = to_json(config).dump(2);
  if (config.job.print_config) std::cout << "Running with configs: " << text << std::endl;
  if (!config.job.save_config_file.has_value()) return absl::OkStatus();

  const std::filesystem::path path = std::filesystem::path(config.job.dump_folder) / *config.job.save_config_file;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::ofstream file(path, std::ios::trunc);
  file << text << "\n";
  file.close();
  if (!file) return errno_status(errno, absl::StrCat("job.save_config_file: write ", path.string()));
  return absl::OkStatus();
}

}  // namespace titan::config
