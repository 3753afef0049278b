// Stands in for a slow disk: preloaded into a program, it makes each fdatasync and fsync take the milliseconds that the file
// TITAN_SLOW_SYNC names, which may change while the program runs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void wait_as_told(void) {
  const char* path = getenv("TITAN_SLOW_SYNC");
  FILE* file = path == NULL ? NULL : fopen(path, "r");
  long milliseconds = 0;
  if (file == NULL) return;
  if (fscanf(file, "%ld", &milliseconds) != 1) milliseconds = 0;
  fclose(file);
  const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&pause, NULL);
}

static int then(const char* name, int descriptor) {
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
  wait_as_told();
  return next(descriptor);
}

int fdatasync(int descriptor) { return then("fdatasync", descriptor); }
int fsync(int descriptor) { return then("fsync", descriptor); }
