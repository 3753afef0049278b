#include "common/plan/config/source_settings.h"

namespace titan::config {

DataLoader settings_of(const DataSource& source, DataLoader settings) {
  settings.format = source.format.value_or(settings.format);
  settings.text_key = source.text_key.value_or(settings.text_key);
  settings.messages_key = source.messages_key.value_or(settings.messages_key);
  settings.train_on = source.train_on.value_or(settings.train_on);
  settings.text_documents = source.text_documents.value_or(settings.text_documents);
  return settings;
}

}  // namespace titan::config
