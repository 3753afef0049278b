#pragma once

// Opens this controller's store as its flags say: a file, or etcd together with other controllers.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/service/journal/journal.h"
#include "controller/main/flags.h"
#include "controller/reconcile/measures.h"
#include "controller/store/backup.h"
#include "controller/store/etcd/elector.h"
#include "controller/store/store.h"

namespace titan {

struct OpenStore {
  std::unique_ptr<store::Store> store;
  std::string where;  // Location of the store, for people.
  // For a store with a file: writes a copy of it, for `actor`; `scratch` is the folder for copies until they are sent.
  std::function<absl::StatusOr<store::StoreInfo>(const std::string& copy, const std::string& actor)> copy;
  std::string scratch;
  std::function<absl::StatusOr<store::StoreImage>(const std::string& actor)> image;  // The same, in memory.
  // Ends this process when the store's file was deleted or replaced; null: it has no file.
  std::function<void()> check_files;
};

// Returns a handler that logs the reason and exits with code 3. After a failed write nothing in memory can be trusted,
// and a former leader no longer knows the state: the supervisor starts a fresh process that reads the store.
std::function<void(const absl::Status&)> fatal_handler(const std::shared_ptr<journal::Journal>& journal,
                                                       reconcile::Measures& measures);

// Both end this process when the store can no longer work.
absl::StatusOr<OpenStore> open_file(const Flags& flags, const std::shared_ptr<journal::Journal>& journal,
                                    reconcile::Measures& measures);
// `elector` must have won the election.
absl::StatusOr<OpenStore> open_in_etcd(std::unique_ptr<store::Elector> elector, const Flags& flags,
                                       const std::shared_ptr<journal::Journal>& journal, reconcile::Measures& measures);

}  // namespace titan
