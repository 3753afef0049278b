#pragma once

#include <memory>

#include "absl/status/status.h"
#include "common/service/journal/journal.h"
#include "controller/main/flags.h"

namespace titan {

// Serves until SIGTERM or SIGINT. With a store in etcd it stands by until it leads. Errors: those of the store and of
// the addresses to listen on.
absl::Status serve(const Flags& flags, const std::shared_ptr<journal::RecentLines>& journal);

}  // namespace titan
