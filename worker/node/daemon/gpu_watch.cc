#include "worker/node/daemon/gpu_watch.h"

#include <utility>
#include <vector>

namespace titan::daemon {

GpuWatch::GpuWatch(std::shared_ptr<GpuSeries> series, const std::string& library, int devices)
    : own_(new Own{std::move(series), GpuReader(library, devices)}) {}

void GpuWatch::look() {
  if (own_->busy.exchange(true)) return;
  lane_.run([own = own_] {
    own->look();
    own->busy = false;
  });
}

void GpuWatch::Own::look() {
  if (absent) return;
  series->begin();
  absl::StatusOr<std::vector<GpuSeen>> seen = reader.read();
  if (seen.ok()) return series->show(*std::move(seen));
  absent = absl::IsNotFound(seen.status());
  const std::string why(seen.status().message());
  return absent ? series->give_up(why) : series->fail(why);
}

}  // namespace titan::daemon
