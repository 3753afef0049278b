#include "controller/api/job_fields.h"

#include <utility>

#include "absl/strings/match.h"
#include "controller/core/labels.h"

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

std::optional<Field> find_field(const std::string& path) {
  for (const Named& field : kFields) {
    if (path == field.name) return Field{field.kind, field.value};
  }
  if (!absl::StartsWith(path, kLabels)) return std::nullopt;
  std::string key = path.substr(kLabels.size());
  if (!core::valid_label_key(key)) return std::nullopt;
  return Field{FieldKind::kText, [key = std::move(key)](const JobView& job) {
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

}  // namespace titan::api
