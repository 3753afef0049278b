// Texts inside requests and certificates: filters, orders, page tokens, tokens, names.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/identity.h"
#include "controller/api/filter.h"
#include "controller/api/job_fields.h"
#include "controller/api/paging.h"
#include "controller/auth/caller.h"
#include "controller/cli/pki/certificate.h"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/target.h"

namespace titan::fuzz {
namespace {

core::JobViewPtr some_job(int number) {
  job::JobRecord record;
  record.uid = absl::StrCat("uid", number);
  record.name = absl::StrCat("projects/default/jobs/j", number);
  record.spec.job_id = absl::StrCat("j", number);
  record.spec.title = number == 0 ? "" : "a \"title\"";
  record.spec.priority = 5 - number;
  record.state = number == 0 ? job::JobState::kQueued : job::JobState::kRunning;
  record.labels = {{"team", "vision"}};
  record.create_time_ns = 1'700'000'000'000'000'000 + number;
  record.start_time_ns = number == 0 ? 0 : record.create_time_ns + 1;
  record.order = number + 1;
  auto view = std::make_shared<core::JobView>();
  view->record = std::make_shared<const job::JobRecord>(std::move(record));
  view->progress.step = number * 10;
  return view;
}

const std::vector<core::JobViewPtr>& some_jobs() {
  static const std::vector<core::JobViewPtr> jobs = {some_job(0), some_job(1), some_job(2)};
  return jobs;
}

}  // namespace

TITAN_FUZZ(filter, 4000) {
  const std::string text(bytes);
  const absl::Time now = absl::FromUnixSeconds(1'700'000'100);
  const auto filter = api::parse_filter(text, now);
  if (!filter.ok()) return require(absl::IsInvalidArgument(filter.status()), "a filter is wrong, and nothing else");
  const auto negated = api::parse_filter(absl::StrCat("NOT (", text, ")"), now);
  for (const core::JobViewPtr& job : some_jobs()) {
    const bool holds = (*filter)(*job);
    if (negated.ok()) require((*negated)(*job) != holds, "NOT inverts the result");
  }
}

// An order, and a made-up page token.
TITAN_FUZZ(order_by, 4000) {
  Parts parts(bytes);
  const auto order = api::OrderBy::parse(std::string(parts.next()));
  if (!order.ok()) return;
  const auto& jobs = some_jobs();
  for (const core::JobViewPtr& a : jobs) {
    const auto after = order->after(order->place(*a));
    require(after.ok(), "a job's place is accepted");
    for (const core::JobViewPtr& b : jobs) {
      require((*after)(*b) == order->before(*a, *b), "later jobs in the order come after its place");
      require(!order->before(*a, *b) || !order->before(*b, *a), "the order is strict");
    }
  }
  const auto after = order->after(std::string(parts.rest()));
  if (after.ok()) (void)(*after)(*jobs[0]);
}

TITAN_FUZZ(page_token, 4000) {
  const std::string text(bytes);
  const auto page = api::read_page(0, text, "bound");
  if (page.ok() && !text.empty()) {
    const auto again = api::read_page(0, api::write_token(page->after, "bound"), "bound");
    require(again.ok() && again->after == page->after, "a page token is read as it was written");
  }
  const auto own = api::read_page(7, api::write_token(text, "bound"), "bound");
  require(own.ok() && own->after == text, "a page token holds any text");
  require(!api::read_page(7, api::write_token(text, "bound"), "elsewhere").ok(),
          "a page token is valid only for its request");
}

// A token's text, and the identities that a certificate names.
TITAN_FUZZ(credentials, 4000) {
  const rpc::TokenText token = rpc::parse_token({bytes.data(), bytes.size()});
  require(token.id.empty() == token.secret.empty(), "a token has both parts or neither");
  if (!token.id.empty()) {
    require(rpc::is_token_id(token.id), "a token id is valid");
    require(rpc::to_text(token) == bytes, "the text round-trips");
  }
  const auto identity = rpc::identity_in({std::string(bytes)});
  if (identity) require(rpc::to_uri(*identity) == bytes, "an identity is written as it was read");
  const std::string actor = auth::peer_actor(std::string(bytes));
  require(actor.find(' ') == actor.npos && actor.find('\n') == actor.npos, "an actor is one word");
}

// An authority's files, one or both of which are invalid.
TITAN_FUZZ(certificate, 100) {
  static const auto* const own = new pki::KeyPair(*pki::make_authority("test", {absl::UnixEpoch(), absl::Hours(1)}));
  static const auto* const key = new std::string(*pki::make_key());
  Parts parts(bytes);
  const std::string one(parts.next()), two(parts.next());
  const pki::Subject subject{one.substr(0, 64), {two.substr(0, 64)}, true};
  const pki::Validity validity{absl::UnixEpoch(), absl::Hours(1)};
  (void)pki::issue({one, own->key}, subject, *key, validity);
  (void)pki::issue({own->certificate, one}, subject, *key, validity);
  (void)pki::issue(*own, subject, two, validity);
}

}  // namespace titan::fuzz
