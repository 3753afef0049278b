#include "common/io/s3/object_reader.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::s3 {

BlockCache::Block BlockCache::block(const std::string& key, const std::string& etag, int64_t size, int64_t index) {
  std::list<Entry> dropped;  // Destroyed after the lock is released: the last owner of a block waits for it.
  sync::Lock lock(mutex_);
  const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) {
    return one.index == index && one.key == key && one.etag == etag;
  });
  if (same != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, same);
    return entries_.front().block;
  }
  const auto read = [client = client_, key, etag, begin = index * sizes_.block_bytes,
                     bytes = std::min(sizes_.block_bytes, size - index * sizes_.block_bytes)]()
      -> absl::StatusOr<std::shared_ptr<const std::string>> {
    auto text = std::make_shared<std::string>(static_cast<size_t>(bytes), '\0');
    TITAN_RETURN_IF_ERROR(client->read(key, etag, begin, bytes, text->data()));
    return text;
  };
  entries_.push_front({key, etag, index, std::async(std::launch::async, read).share()});
  const BlockCache::Block made = entries_.front().block;
  if (static_cast<int>(entries_.size()) > sizes_.blocks_kept) {
    dropped.splice(dropped.begin(), entries_, std::prev(entries_.end()));
  }
  return made;
}

void BlockCache::forget(const std::string& key, const std::string& etag, int64_t index) {
  sync::Lock lock(mutex_);
  std::erase_if(entries_, [&](const Entry& one) { return one.index == index && one.key == key && one.etag == etag; });
}

absl::Status ObjectReader::read(int64_t offset, int64_t bytes, char* out) {
  if (offset < 0 || bytes < 0 || offset + bytes > size_) {
    return absl::DataLossError(absl::StrCat("read ", blocks_->client().place(key_), ": ends at byte ", size_,
                                            ", but is needed up to ", offset + bytes));
  }
  const int64_t block = blocks_->sizes().block_bytes;
  if (bytes >= 2 * block) return read_large(offset, bytes, out);
  for (int64_t done = 0; done < bytes;) {
    const int64_t index = (offset + done) / block, from = (offset + done) % block;
    const int64_t before = newest_.exchange(index);
    const BlockCache::Block here = blocks_->block(key_, etag_, size_, index);
    const bool in_order = index == before || index == before + 1;
    for (int64_t next = index + 1; in_order && next < index + blocks_->sizes().blocks_at_once && next * block < size_;
         ++next) {
      blocks_->block(key_, etag_, size_, next);
    }
    const auto& text = here.get();
    if (!text.ok()) {
      blocks_->forget(key_, etag_, index);
      return text.status();
    }
    const int64_t count = std::min(bytes - done, static_cast<int64_t>((*text)->size()) - from);
    std::memcpy(out + done, (*text)->data() + from, static_cast<size_t>(count));
    done += count;
  }
  return absl::OkStatus();
}

// Reads into the destination directly, without the cache.
absl::Status ObjectReader::read_large(int64_t offset, int64_t bytes, char* out) {
  const int64_t block = blocks_->sizes().block_bytes;
  std::deque<std::future<absl::Status>> reading;
  absl::Status status;
  const auto take_oldest = [&] {
    absl::Status one = reading.front().get();
    reading.pop_front();
    if (status.ok()) status = std::move(one);
  };
  for (int64_t done = 0; done < bytes && status.ok(); done += block) {
    if (static_cast<int>(reading.size()) == blocks_->sizes().blocks_at_once) take_oldest();
    reading.push_back(std::async(std::launch::async, [this, offset, out, done, count = std::min(block, bytes - done)] {
      return blocks_->client().read(key_, etag_, offset + done, count, out + done);
    }));
  }
  while (!reading.empty()) take_oldest();
  return status;
}

}  // namespace titan::s3
