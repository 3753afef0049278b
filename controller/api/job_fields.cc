#include "controller/api/job_fields.h"

#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text/nearest.h"
#include "common/service/rpc/error.h"
#include "controller/core/labels.h"
#include "nlohmann/json.hpp"

namespace titan::api {
namespace {

using core::JobView;

constexpr absl::string_view kLabels = "labels.";

struct Named {
  const char* name;
  FieldKind kind;
  FieldValue (*value)(const JobView&);
};

FieldValue text_value(const std::string& value) { return absl::string_view(value); }
FieldValue time_value(int64_t ns) { return ns == 0 ? FieldValue() : FieldValue(ns); }
FieldValue number_value(int64_t value) { return value; }

constexpr Named kFields[] = {
    {"state", FieldKind::kState, [](const JobView& job) { return FieldValue(job::name(job.record->state)); }},
    {"name", FieldKind::kText, [](const JobView& job) { return text_value(job.record->name); }},
    {"id", FieldKind::kText, [](const JobView& job) { return text_value(job.record->spec.job_id); }},
    {"project", FieldKind::kText, [](const JobView& job) { return text_value(job.record->spec.project); }},
    {"owner", FieldKind::kText, [](const JobView& job) { return text_value(job.record->owner); }},
    {"title", FieldKind::kText, [](const JobView& job) { return text_value(job.record->spec.title); }},
    {"device", FieldKind::kText, [](const JobView& job) { return text_value(job.record->spec.device); }},
    {"priority", FieldKind::kNumber, [](const JobView& job) { return number_value(job.record->spec.priority); }},
    {"ranks", FieldKind::kNumber, [](const JobView& job) { return number_value(job.record->spec.ranks); }},
    {"progress.step", FieldKind::kNumber, [](const JobView& job) { return number_value(job.progress.step); }},
    {"create_time", FieldKind::kTime, [](const JobView& job) { return time_value(job.record->create_time_ns); }},
    {"start_time", FieldKind::kTime, [](const JobView& job) { return time_value(job.record->start_time_ns); }},
    {"end_time", FieldKind::kTime, [](const JobView& job) { return time_value(job.record->end_time_ns); }},
};

}  // namespace

std::optional<JobField> find_field(const std::string& path) {
  for (const Named& field : kFields) {
    if (path == field.name) return JobField{field.kind, field.value};
  }
  if (!absl::StartsWith(path, kLabels)) return std::nullopt;
  std::string key = path.substr(kLabels.size());
  if (!core::valid_label_key(key)) return std::nullopt;
  return JobField{FieldKind::kText, [key = std::move(key)](const JobView& job) {
                    const auto label = job.record->labels.find(key);
                    return label == job.record->labels.end() ? FieldValue() : text_value(label->second);
                  }};
}

const std::vector<std::string>& field_names() {
  static const auto* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const Named& field : kFields) all->push_back(field.name);
    all->push_back("labels.KEY");
    return all;
  }();
  return *names;
}

namespace {

absl::Status wrong(const std::string& what) { return rpc::bad_request("ORDER_BY_INVALID", {{"order_by", what}}); }

// Returns -1, 0 or 1. Expects both values to be set or both to be unset.
int compare(const FieldValue& a, const FieldValue& b) {
  if (a == b) return 0;
  return a < b ? -1 : 1;
}

bool has_value(const FieldValue& value) { return !std::holds_alternative<std::monostate>(value); }

}  // namespace

absl::StatusOr<OrderBy> OrderBy::parse(const std::string& text) {
  OrderBy order;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> words = absl::StrSplit(part, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.empty()) return wrong("has an empty part; write: priority desc, create_time");
    const std::optional<JobField> field = find_field(words[0]);
    if (!field) return wrong(absl::StrCat("unknown field '", words[0], "'", did_you_mean(words[0], field_names())));
    const bool descending = words.size() == 2 && words[1] == "desc";
    if (words.size() > 2 || (words.size() == 2 && !descending && words[1] != "asc")) {
      return wrong(absl::StrCat("'", absl::StripAsciiWhitespace(part), "': only desc or asc may follow the field"));
    }
    order.keys_.push_back({*field, descending});
  }
  return order;
}

OrderBy::Values OrderBy::values(const core::JobView& job) const {
  Values values;
  for (const Key& key : keys_) values.push_back(key.field.value(job));
  return values;
}

bool OrderBy::before(const Values& a, int64_t order_a, const Values& b, int64_t order_b) const {
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (has_value(a[i]) != has_value(b[i])) return has_value(a[i]);
    const int sign = compare(a[i], b[i]);
    if (sign != 0) return (sign < 0) != keys_[i].descending;
  }
  return order_a > order_b;
}

bool OrderBy::before(const core::JobView& a, const core::JobView& b) const {
  return before(values(a), a.record->order, values(b), b.record->order);
}

std::string OrderBy::place(const core::JobView& job) const {
  nlohmann::json place = nlohmann::json::array();
  for (const FieldValue& value : values(job)) {
    if (const auto* text = std::get_if<absl::string_view>(&value)) place.push_back(std::string(*text));
    if (const auto* number = std::get_if<int64_t>(&value)) place.push_back(*number);
    if (!has_value(value)) place.push_back(nullptr);
  }
  place.push_back(job.record->order);
  return place.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::function<bool(const core::JobView&)>> OrderBy::after(const std::string& place) const {
  auto json = std::make_shared<const nlohmann::json>(nlohmann::json::parse(place, nullptr, /*allow_exceptions=*/false));
  if (!json->is_array() || json->size() != keys_.size() + 1 || !json->back().is_number_integer()) {
    return rpc::bad_request("BAD_PAGE_TOKEN", {{"page_token", "belongs to a request with another order_by"}});
  }
  Values there;
  for (size_t i = 0; i < keys_.size(); ++i) {
    FieldValue& value = there.emplace_back();
    if ((*json)[i].is_string()) value = absl::string_view((*json)[i].get_ref<const std::string&>());
    if ((*json)[i].is_number_integer()) value = (*json)[i].get<int64_t>();
  }
  // `there` refers to texts in `json`, so the closure keeps both.
  return [order_by = *this, json, there, order = json->back().get<int64_t>()](const core::JobView& job) {
    return order_by.before(there, order, order_by.values(job), job.record->order);
  };
}

}  // namespace titan::api
