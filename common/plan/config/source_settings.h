#pragma once

#include "common/plan/config/job_config.h"

namespace titan::config {

// The keys of dataloader as one of its sources has them: its own where it sets one.
DataLoader settings_of(const DataSource& source, DataLoader settings);

}  // namespace titan::config
