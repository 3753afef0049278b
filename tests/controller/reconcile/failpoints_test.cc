// Failpoints can end a controller before and after each kind of record that it writes.

#include "controller/reconcile/failpoints.h"

#include "absl/strings/str_cat.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/core/core.h"
#include "controller/core/keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::reconcile {
namespace {

using ::testing::Contains;
using ::testing::UnorderedElementsAreArray;

std::string kind_of(const std::string& key) { return key.substr(0, key.find('/')); }

TEST(FailpointsTest, EachKindOfRecordHasTwoFailpoints) {
  const std::vector<std::string> names = failpoint::names();
  for (const absl::string_view kind : core::kRecordKinds) {
    EXPECT_THAT(names, Contains(absl::StrCat("write.", kind)));
    EXPECT_THAT(names, Contains(absl::StrCat("durable.", kind)));
  }
}

TEST(FailpointsTest, KindsCoverAllKeys) {
  using namespace core;  // NOLINT(google-build-using-namespace): every function of keys.h.
  const std::set<std::string> kinds = {kind_of(job_key("u")),           kind_of(spec_key("u")),
                                       kind_of(deleted_key("u")),       kind_of(cancel_key("u")),
                                       kind_of(update_key("u")),        kind_of(attempt_key("u", 1)),
                                       kind_of(exit_key("u", 1, 0)),    kind_of(error_key("u", 1, 0)),
                                       kind_of(refusal_key("u", 1, 0)), kind_of(failed_log_key("u", 1, 0)),
                                       kind_of(diagnosis_key("u", 1)),  kind_of(progress_key("u")),
                                       kind_of(cursor_key("u", 1, 0)),  kind_of(node_key("n")),
                                       kind_of(job_events_prefix("u")), kind_of(node_events_prefix("n"))};
  EXPECT_THAT(kinds, UnorderedElementsAreArray(kRecordKinds.begin(), kRecordKinds.end()));
  for (const std::string& prefix : Core::loaded_prefixes()) EXPECT_TRUE(kinds.contains(kind_of(prefix))) << prefix;
}

TEST(FailpointsTest, TransactionsPassTheFailpointsOfTheirRecords) {
  std::set<failpoints::Kinds> bits;
  for (const absl::string_view kind : core::kRecordKinds) {
    store::Transaction transaction;
    transaction.mutations.push_back(store::put(absl::StrCat(kind, "/u"), ""));
    const failpoints::Kinds kinds = failpoints::kinds_of(transaction);
    EXPECT_NE(kinds, 0u) << kind;
    bits.insert(kinds);
  }
  EXPECT_EQ(bits.size(), core::kRecordKinds.size());
}

}  // namespace
}  // namespace titan::reconcile
