/* Gathers random messages into buffers of exactly the measured sizes. Built with sanitizers by test_native.py. */
#include <stdio.h>
#include <stdlib.h>

#include "gather.c"

static uint64_t state = 88172645463325252ull; /* or another seed, the second argument */

static uint64_t draw(uint64_t below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % below;
}

typedef struct {
  message public;
  size_t header_count;
  char names[4][8];
  char values[4][8];
  size_t value_sizes[4];
  int null_values[4];
} made;

static int64_t timestamp(const message *m, int *kind) { return *kind = (int)draw(3), m->offset; }
static int32_t leader_epoch(const message *m) { return m->partition; }
static int headers(const message *m, void **found) {
  const made *own = (const made *)m;
  *found = (void *)own;
  return own->header_count ? 0 : -1;
}
static int header_at(const void *from, size_t index, const char **name, const void **value, size_t *size) {
  const made *own = from;
  if (index >= own->header_count) return -1;
  *name = own->names[index];
  *value = own->null_values[index] ? NULL : own->values[index];
  *size = own->value_sizes[index];
  return 0;
}

static void *bytes(int64_t size) {
  void *made_ = malloc((size_t)size); /* of no bytes: an address that may not be written to */
  if (!made_) abort();
  memset(made_, 0, (size_t)size);
  return made_;
}

static void round_(void) {
  int64_t count = 1 + (int64_t)draw(200);
  made *all = calloc((size_t)count, sizeof *all);
  item *items = calloc((size_t)count, sizeof *items);
  for (int64_t i = 0; i < count; i++) {
    made *m = &all[i];
    items[i].message = draw(20) ? &m->public : NULL;
    m->public.topic = (void *)(draw(2) + 1);
    m->public.partition = (int32_t)draw(3);
    m->public.offset = i;
    if (draw(4)) m->public.key = malloc((m->public.key_size = draw(9)) + 1);
    if (draw(4)) m->public.value = malloc((m->public.value_size = draw(300)) + 1);
    if (m->public.key) memset(m->public.key, 'k', m->public.key_size);
    if (m->public.value) memset(m->public.value, 'v', m->public.value_size);
    m->header_count = draw(5);
    for (size_t h = 0; h < m->header_count; h++) {
      memset(m->names[h], 'n', draw(8));
      m->value_sizes[h] = draw(9);
      m->null_values[h] = !draw(3);
    }
  }
  group *groups = calloc((size_t)count, sizeof *groups);
  int64_t found = forebay_measure(items, count, 1, groups), seen = 0;
  for (int64_t k = 0; k < found; k++) {
    group *g = &groups[k];
    int64_t size = g->end - g->begin;
    seen += size;
    if (g->is_error) continue;
    uint8_t *keys = bytes(g->key_bytes), *values = bytes(g->value_bytes);
    uint8_t *key_valid = g->null_keys ? bytes((size + 7) / 8) : NULL, *value_valid = g->null_values ? bytes((size + 7) / 8) : NULL;
    int32_t *key_ends = bytes(4 * (size + 1)), *value_ends = bytes(4 * (size + 1)), *kinds = bytes(4 * size);
    int64_t *offsets = bytes(8 * size), *times = bytes(8 * size);
    forebay_fill(items + g->begin, size, keys, key_ends, key_valid, values, value_ends, value_valid, offsets, times, kinds);
    if (key_ends[size] != g->key_bytes || value_ends[size] != g->value_bytes || offsets[0] != items[g->begin].message->offset) abort();
    int32_t *ends = bytes(4 * (size + 1)), *name_ends = bytes(4 * (g->header_count + 1)), *entry_ends = bytes(4 * (g->header_count + 1));
    uint8_t *valid = bytes((size + 7) / 8), *names = bytes(g->header_name_bytes), *entries = bytes(g->header_value_bytes);
    uint8_t *entry_valid = bytes((g->header_count + 7) / 8);
    forebay_fill_headers(items + g->begin, size, ends, valid, names, name_ends, entries, entry_ends, entry_valid);
    if (ends[size] != g->header_count || name_ends[g->header_count] != g->header_name_bytes || entry_ends[g->header_count] != g->header_value_bytes)
      abort();
    void *used_[] = {keys, values, key_valid, value_valid, key_ends, value_ends, kinds, offsets, times, ends, name_ends, entry_ends, valid, names, entries, entry_valid};
    for (size_t i = 0; i < sizeof used_ / sizeof *used_; i++) free(used_[i]);
  }
  if (seen != count) abort();
  for (int64_t i = 0; i < count; i++) free(all[i].public.key), free(all[i].public.value);
  free(groups), free(items), free(all);
}

int main(int count, char **arguments) {
  library fake = {.timestamp = timestamp, .leader_epoch = leader_epoch, .headers = headers, .header_at = header_at};
  forebay_use(&fake);
  int rounds = count > 1 ? atoi(arguments[1]) : 100;
  if (count > 2) state ^= strtoull(arguments[2], NULL, 10) << 20;
  for (int i = 0; i < rounds; i++) round_();
  printf("%d rounds\n", rounds);
  return 0;
}
