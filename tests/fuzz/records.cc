// Records from the controller's store, including damaged ones.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "controller/auth/tokens.h"
#include "controller/job/record.h"
#include "controller/store/etcd/layout.h"
#include "controller/store/memory_store.h"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/target.h"
#include "titan/store/log.pb.h"

namespace titan::fuzz {
namespace {

template <typename Record>
void decode_again(const std::string& text) {
  const absl::StatusOr<Record> record = job::decode<Record>(text);
  if (!record.ok()) return;
  const std::string written = job::encode(*record);
  const absl::StatusOr<Record> again = job::decode<Record>(written);
  require(again.ok(), "written records are read");
  require(job::encode(*again) == written, "a written record is read back unchanged");
  Record quick;
  if (!job::read_quickly(text, quick)) return;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  require(json.is_object(), "the quick reader accepts only JSON");
  require(job::encode(json.get<Record>()) == job::encode(quick), "and both readers read the same");
}

}  // namespace

TITAN_FUZZ(records, 3000) {
  Parts parts(bytes);
  const uint8_t kind = parts.byte();
  const std::string text(parts.rest());
  switch (kind % 9) {
    case 0:
      return decode_again<job::JobRecord>(text);
    case 1:
      return decode_again<job::AttemptRecord>(text);
    case 2:
      return decode_again<job::Tombstone>(text);
    case 3:
      return decode_again<job::EventRecord>(text);
    case 4:
      return decode_again<job::NodeRecord>(text);
    case 5:
      return decode_again<job::Progress>(text);
    case 6:
      return decode_again<job::RankExit>(text);
    case 7:
      return decode_again<job::ErrorReport>(text);
    default:
      return decode_again<job::Refusal>(text);
  }
}

// A damaged token record admits no caller.
TITAN_FUZZ(token_record, 1000) {
  store::MemoryStore store;
  store.commit({{store::put(auth::token_key("abcdefgh"), std::string(bytes))}, store::WhenFull::kRetry, {}},
               [](const auto&) {});
  store.run_pending();
  const auto tokens = auth::Tokens::load(store, [] { return absl::FromUnixSeconds(1'700'000'000); });
  require(tokens.ok(), "an invalid record does not keep the controller from starting");
  for (const auth::TokenRecord& token : (*tokens)->list()) {
    require(token.role != auth::Role::kNone && !token.digest.empty() && !token.user.empty(), "a token names its user");
  }
  require(!(*tokens)->caller("titan_abcdefgh_00").ok() || !(*tokens)->list().empty(),
          "a store without valid tokens admits nobody");
}

// Opens values as stored in etcd.
TITAN_FUZZ(sealed, 3000) {
  const std::string key = "titan/head";
  const std::string body(bytes);
  const std::string whole = store::seal(key, body);
  const auto read = store::unseal(key, whole);
  require(read.ok() && *read == body, "sealed text is read");
  require(!store::unseal("titan/tail", whole).ok(), "sealed text is read only under its key");
  require(!store::unseal(key, whole.substr(0, whole.size() - 1)).ok(), "truncated sealed text is refused");
  (void)store::unseal(key, body);
  const auto entry = store::unseal_message<titan::store::v1::StoredEntry>(key, whole);
  if (entry.ok())
    require(store::unseal_message<titan::store::v1::StoredEntry>(key, store::seal_message(key, *entry)).ok(),
            "a sealed message is read again");
}

}  // namespace titan::fuzz
