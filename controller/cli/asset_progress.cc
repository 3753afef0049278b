#include "controller/cli/asset_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/text/message_text.h"
#include "common/base/text/quantities.h"
#include "common/io/hub/names.h"
#include "controller/cli/output.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

constexpr absl::Duration kDrawEach = absl::Milliseconds(500);
constexpr double kOldRate = 0.8;  // Weight of the old rate at each drawing.

}  // namespace

AssetProgress::AssetProgress(bool quiet) : quiet_(quiet), terminal_(!quiet && is_capable(STDERR_FILENO)) {}

void AssetProgress::say(const std::string& line) {
  sync::Lock lock(mutex_);
  clear();
  note(line);
}

void AssetProgress::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void AssetProgress::end() {
  sync::Lock lock(mutex_);
  clear();
}

int64_t AssetProgress::bytes() {
  sync::Lock lock(mutex_);
  return arrived_;
}

void AssetProgress::waiting(const std::string& folder) {
  say(absl::StrCat("another titanctl downloads into ", folder, ": waiting for it"));
}

void AssetProgress::checking(const hub::RemoteFile& file) {
  say(absl::StrCat(text::printable_name(file.name), " is there already: comparing it with the hub's checksum"));
}

void AssetProgress::planned(const hub::DownloadPlan& plan) {
  {
    sync::Lock lock(mutex_);
    size_ = plan.size(), there_ = size_ - plan.left();
  }
  if (plan.left() == 0) return;
  say(absl::StrCat(counted(plan.files.size(), "file"), ", ", bytes_text(size_),
                   there_ == 0 ? "" : absl::StrCat("; ", bytes_text(there_), " of it there already"), "; commit ",
                   plan.commit));
}

void AssetProgress::arrived(int64_t bytes) {
  sync::Lock lock(mutex_);
  arrived_ += bytes;
  if (!terminal_) return;
  if (const absl::Time now = absl::Now(); now - last_ >= kDrawEach) draw(now);
}

void AssetProgress::draw(absl::Time now) {
  if (last_ != absl::InfinitePast()) {
    const double fresh = static_cast<double>(arrived_ - last_arrived_) / absl::ToDoubleSeconds(now - last_);
    rate_ = rate_ == 0 ? fresh : kOldRate * rate_ + (1 - kOldRate) * fresh;
  }
  last_ = now, last_arrived_ = arrived_;
  const int64_t have = std::min(size_, there_ + arrived_);
  std::string line = absl::StrCat(bytes_text(have), " of ", bytes_text(size_));
  if (rate_ > 0)
    absl::StrAppend(&line, "  ", bytes_text(static_cast<int64_t>(rate_)), "/s  ",
                    duration_text(static_cast<double>(size_ - have) / rate_), " left");
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void AssetProgress::finished(const hub::RemoteFile& file) {
  say(absl::StrCat(text::printable_name(file.name), "  ", bytes_text(file.size)));
}

void AssetProgress::again(const hub::RemoteFile& file, int64_t lost, const absl::Status& why) {
  sync::Lock lock(mutex_);
  clear();
  there_ -= lost;
  warn(absl::StrCat(text::printable_name(file.name), " is downloaded again: ", why.message()));
}

void AssetProgress::retrying(const absl::Status& why, absl::Duration wait) {
  say(absl::StrCat(why.message(), "; trying again in ", duration_text(absl::ToDoubleSeconds(wait) + 0.5)));
}

}  // namespace titan::cli
