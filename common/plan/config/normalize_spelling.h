#pragma once

#include <string>
#include <vector>

#include "common/plan/config/fields.h"
#include "common/plan/config/load.h"
#include "common/plan/config/raw.h"

namespace titan::config {

// Rewrites values that differ from an allowed value only in spelling: in case, hyphens and underscores ("adamw",
// "for_loop"), or by another name of a data type ("bf16", "torch.float32"). Also rewrites members of lists of tables.
// Returns a remark for each rewritten value: `is read as "AdamW"`.
std::vector<std::string> normalize_spelling(const Field& field, RawValue& value);

// Does the same for model.name and model.flavor, with the registry's values. Remarks become warnings.
void normalize_model_names(LoadedConfig& loaded);

}  // namespace titan::config
