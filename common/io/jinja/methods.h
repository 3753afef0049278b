#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/io/jinja/arguments.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// Report and call the methods of strings, lists, mappings and loops, as Python and Jinja define them.
bool has_method(const Value& self, const std::string& name);
absl::StatusOr<Value> call_method(Run& run, const Value& self, const std::string& name, const Arguments& arguments);

}  // namespace titan::jinja
