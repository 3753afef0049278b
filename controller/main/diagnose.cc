#include "controller/main/diagnose.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/host/host_facts.h"
#include "common/base/redact/redact.h"
#include "common/base/text/utf8.h"
#include "common/base/version/version.h"
#include "controller/store/backup.h"

namespace titan {
namespace {

std::string bytes_of(const std::string& file) {
  std::error_code failed;
  const auto size = std::filesystem::file_size(file, failed);
  return failed ? "" : absl::StrCat(size);
}

void add_configuration(const Flags& flags, google::protobuf::Map<std::string, std::string>& out) {
  out["listen"] = flags.listen;
  out["advertise"] = flags.advertise;
  out["state"] = flags.state;
  out["store"] = flags.store;
  out["metrics"] = absl::StrCat(flags.metrics_address, ":", flags.metrics_port);
  out["lease_ms"] = absl::StrCat(flags.lease_ms);
  out["default_time_limit_seconds"] = absl::StrCat(flags.default_time_limit_seconds);
  out["kept_logs_mib"] = absl::StrCat(flags.kept_logs_mib);
  out["keep_finished_days"] = absl::StrCat(flags.keep_finished_days);
  out["log_format"] = flags.log_format;
  out["audit_log"] = flags.audit_log;
  out["tls_ca"] = flags.security.ca;
  out["tls_cert"] = flags.security.cert;
  out["insecure"] = flags.security.insecure ? "yes" : "no";
  out["reflection"] = flags.reflection ? "yes" : "no";
  for (auto& [name, value] : out) value = redact::text(value);
}

void add_store(const Flags& flags, const store::Store& store, google::protobuf::Map<std::string, std::string>& out) {
  out["id"] = store.id();
  out["epoch"] = absl::StrCat(store.epoch());
  out["revision"] = absl::StrCat(store.revision());
  out["queued_transactions"] = absl::StrCat(store.queued().transactions);
  out["queued_bytes"] = absl::StrCat(store.queued().bytes);
  out["set_aside"] = absl::StrCat(store.quarantined().size());
  if (!flags.store.empty()) return;
  const std::string file = absl::StrCat(flags.state, "/", store::kDatabaseName);
  out["file_bytes"] = bytes_of(file);
  out["file_log_bytes"] = bytes_of(file + "-wal");
}

}  // namespace

v1::Diagnostics diagnose(const Flags& flags, const journal::RecentLines& journal, const metrics::Metrics& metrics,
                         const store::Store& store) {
  v1::Diagnostics all;
  for (const std::string& line : journal.lines()) all.add_journal(text::valid_utf8(redact::text(line)));
  all.set_metrics(metrics.text());
  add_configuration(flags, *all.mutable_configuration());
  add_store(flags, store, *all.mutable_store());
  for (const auto& [name, fact] : host::facts({flags.store.empty() ? flags.state : "/"}))
    (*all.mutable_host())[name] = fact;
  for (const auto& [name, value] : build_manifest()) (*all.mutable_build())[name] = value;
  return all;
}

}  // namespace titan
