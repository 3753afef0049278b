#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// What a loop over the value goes through: items, keys, characters; nothing of an undefined value.
absl::StatusOr<std::vector<Value>> items_of(Run& run, const Value& value);
// len(); InvalidArgument for what has none.
absl::StatusOr<int64_t> length_of(const Value& value);
// `key in value`.
absl::StatusOr<bool> contains(Run& run, const Value& value, const Value& key);

// value[key], or nothing when there is none.
std::optional<Value> item_of(const Value& value, const Value& key);
// value[begin:end:step]; none where the value is none.
absl::StatusOr<Value> slice_of(Run& run, const Value& value, const Value& begin, const Value& end, const Value& step);

// value.name of a mapping, a namespace or a loop, or a method; undefined when there is none.
absl::StatusOr<Value> attribute_of(Run& run, const Value& value, const std::string& name);
// The same for a path, as filters take it: "function.name", "0.role".
absl::StatusOr<Value> attribute_at(Run& run, const Value& value, const Value& path);

}  // namespace titan::jinja
