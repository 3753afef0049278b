#pragma once

// What a store of an older version lacks and cannot take a default for.

#include <vector>

#include "controller/store/store.h"

namespace titan::reconcile {

// Completes the records as they were read; the store gets them with their next change.
void migrate(const store::Store& store, std::vector<store::Record>& records);

}  // namespace titan::reconcile
