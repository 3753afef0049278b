#pragma once

// The one list of configuration keys: name, member, meaning, allowed values, bounds and unit. All code that reads or
// writes a configuration uses this list, so a new key is one member in job_config.h and one line in fields*.cc.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/plan/config/job_config.h"

namespace titan::config {

using StringLists = std::vector<std::vector<std::string>>;

// Pointer to the member that a key sets.
using Ref = std::variant<bool*, int*, std::int64_t*, double*, std::string*, std::optional<std::int64_t>*,
                         std::optional<double>*, std::optional<std::string>*, std::vector<std::string>*,
                         std::optional<StringLists>*, std::optional<bool>*, std::optional<int>*,
                         std::vector<ParamGroup>*, std::vector<DataSource>*, std::vector<std::int64_t>*>;

struct Field {
  template <typename T>
  Field(std::string_view name, T& member, std::string_view help) : key(name), ref(&member), meaning(help) {}

  std::string_view key;
  Ref ref;
  std::string_view meaning;
  std::vector<std::string_view> allowed;  // Empty: any value. For lists: allowed values of each element.
  std::string_view unit;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool positive = false;              // Excludes 0 where minimum is 0.
  std::optional<double> special;      // A value outside the bounds with a special meaning, such as -1.
  bool path = false;                  // A file or folder; titanctl makes it absolute.
  bool number_as_text = false;        // Accepts 2 for "2".
  bool allows_library_names = false;  // Also accepts names from the job's library; check() requires that there is one.
  bool any_case = false;              // Allowed values match in any case, and are stored as listed.
  std::string_view no_effect;         // Not empty: the key is accepted with a warning that gives this reason.

  Field& one_of(std::initializer_list<std::string_view> values) { return allowed = values, *this; }
  Field& in(std::string_view name) { return unit = name, *this; }
  Field& at_least(double value) { return minimum = value, *this; }
  Field& between(double low, double high) { return minimum = low, maximum = high, *this; }
  Field& above_zero() { return minimum = 0, positive = true, *this; }
  Field& or_value(double value) { return special = value, *this; }
  Field& is_path() { return path = true, *this; }
  Field& or_library_name() { return allows_library_names = true, *this; }
  Field& in_any_case() { return any_case = true, *this; }
  Field& takes_number() { return number_as_text = true, *this; }
  Field& without_effect(std::string_view reason) { return no_effect = reason, *this; }
};

struct Section {
  std::string_view name;  // Such as "training.dataloader".
  std::string_view meaning;
  std::vector<Field> fields;
  bool only_set = false;  // to_json_text() has only the keys that are set: they are many and rarely used.
};

// Returns all sections over the members of `config`, in file order. The references are valid as long as `config` is.
std::vector<Section> sections(JobConfig& config);

// Building blocks of sections(), each in the file of its topic.
std::vector<Field> fields_of(JobSection& c);
std::vector<Field> fields_of(ProfilingSection& c);
std::vector<Field> fields_of(MetricsSection& c);
std::vector<Field> fields_of(ModelSection& c);
std::vector<Field> fields_of(ModelOverrideSection& c);
std::vector<Field> fields_of(RopeScalingOverride& c);
std::vector<Field> fields_of(YarnOverride& c);
std::vector<Field> fields_of(MoeOverride& c);
std::vector<Field> fields_of(OptimizerSection& c);
std::vector<Field> fields_of(ParamGroup& c);
std::vector<Field> fields_of(LrSchedulerSection& c);
std::vector<Field> fields_of(TrainingSection& c);
std::vector<Field> fields_of(DataLoaderSection& c);
std::vector<Field> fields_of(DataSource& c);
std::vector<Field> fields_of(EncoderSection& c);
std::vector<Field> fields_of(DataSection& c);
std::vector<Field> fields_of(ParallelismSection& c);
std::vector<Field> fields_of(CheckpointSection& c);
std::vector<Field> fields_of(ActivationCheckpointSection& c);
std::vector<Field> fields_of(CompileSection& c);
std::vector<Field> fields_of(Float8LinearSection& c);
std::vector<Field> fields_of(MxLinearSection& c);
std::vector<Field> fields_of(Float8GroupedMmSection& c);
std::vector<Field> fields_of(MxGroupedMmSection& c);
std::vector<Field> fields_of(LoraSection& c);
std::vector<Field> fields_of(CommSection& c);
std::vector<Field> fields_of(MemoryEstimationSection& c);
std::vector<Field> fields_of(FaultToleranceSection& c);
std::vector<Field> fields_of(ExperimentalSection& c);
std::vector<Field> fields_of(ValidationSection& c);
std::vector<Field> fields_of(InferenceSection& c);
std::vector<Field> fields_of(DebugSection& c);
std::vector<Field> fields_of(ResourcesSection& c);
std::vector<Field> fields_of(RestartSection& c);
std::vector<Field> fields_of(SchedulingSection& c);

// Keys of images at the end of these sections.
std::vector<Field> image_fields_of(TrainingSection& c);
std::vector<Field> image_fields_of(DataLoaderSection& c);
std::vector<Field> image_fields_of(ValidationSection& c);

}  // namespace titan::config
