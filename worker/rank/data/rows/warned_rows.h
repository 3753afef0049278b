#pragma once

#include <memory>
#include <string>

#include "worker/rank/data/documents/row_source.h"

namespace titan::data {

// The same rows, with something to tell of them before all else, once.
std::unique_ptr<RowSource> warned_rows(std::unique_ptr<RowSource> rows, std::string warning);

}  // namespace titan::data
