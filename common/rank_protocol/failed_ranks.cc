#include "common/rank_protocol/failed_ranks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"

namespace titan::rank_protocol {

ExitKind exit_kind(int exit_code, int signal, bool out_of_memory) {
  if (out_of_memory) return ExitKind::kOutOfMemory;
  if (signal != 0) return ExitKind::kKilled;
  switch (exit_code) {
    case kExitBadConfig:
    case kExitUsage:
      return ExitKind::kBadConfig;
    case kExitUserError:
      return ExitKind::kUserError;
    case kExitOutOfMemory:
      return ExitKind::kOutOfMemory;
    case kExitStorage:
      return ExitKind::kStorage;
    case kExitFenced:
      return ExitKind::kFenced;
    case kExitPeerLost:
      return ExitKind::kPeerLost;
    case kExitFinished:
    case kExitStopped:
      return ExitKind::kExpected;
    default:
      return ExitKind::kFailed;
  }
}

namespace {

constexpr size_t kWordsCompared = 200;

std::string kind_of(int exit_code, int signal, std::string_view last_words) {
  if (exit_kind(exit_code, signal) == ExitKind::kPeerLost) return "peer";
  std::string kind = absl::StrCat(exit_code, " ", signal, " ");
  for (const char c : last_words.substr(0, kWordsCompared)) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) kind.push_back(c);
  }
  return kind;
}

}  // namespace

bool has_failed(int exit_code, int signal, std::string_view stop_reason) {
  return !ended_as_expected(exit_code, signal) && stop_reason.empty();
}

bool FailedLogs::take(int exit_code, int signal, std::string_view last_words) {
  const auto alike = std::count(kinds_.begin(), kinds_.end(), kind_of(exit_code, signal, last_words));
  return alike < kFailedLogsAlike && take_named(exit_code, signal, last_words);
}

bool FailedLogs::take_named(int exit_code, int signal, std::string_view last_words) {
  if (kinds_.size() >= kFailedLogs) return false;
  add(exit_code, signal, last_words);
  return true;
}

void FailedLogs::add(int exit_code, int signal, std::string_view last_words) {
  kinds_.push_back(kind_of(exit_code, signal, last_words));
}

std::string_view last_lines(std::string_view text, int64_t lines) {
  size_t begin = text.size();
  if (begin > 0 && text.back() == '\n') --begin;
  for (int64_t i = 0; i < lines; ++i) {
    if (begin == 0) return text;
    begin = text.rfind('\n', begin - 1);
    if (begin == std::string_view::npos) return text;
  }
  return lines <= 0 ? text.substr(text.size()) : text.substr(begin + 1);
}

std::string failed_log(std::string_view log) {
  // U+FFFD, which replaces an invalid byte, has three bytes, so the text may grow beyond the limit.
  const std::string text = text::valid_utf8(log.substr(log.size() - std::min<size_t>(log.size(), kFailedLogBytes)));
  std::string_view end = text;
  if (end.size() > kFailedLogBytes) end.remove_prefix(end.size() - kFailedLogBytes);
  if (end.size() < std::max(text.size(), log.size())) {
    const size_t line = end.find('\n');
    if (line != std::string_view::npos && line + 1 < end.size()) end.remove_prefix(line + 1);
    while (!end.empty() && (static_cast<unsigned char>(end.front()) & 0xC0) == 0x80) end.remove_prefix(1);
  }
  return std::string(last_lines(end, kFailedLogLines));
}

}  // namespace titan::rank_protocol
